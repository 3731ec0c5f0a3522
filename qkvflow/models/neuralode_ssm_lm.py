"""Time-indexed sharing with attention and a state-space part, under the path that is promised."""

from qkvflow.models.named import NeuralODESSMLM as NeuralODESSMLM

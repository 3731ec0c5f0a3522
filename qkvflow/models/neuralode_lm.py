"""Time-indexed parameter sharing with attention and MLP, under the path that is promised."""

from qkvflow.models.named import NeuralODELM as NeuralODELM

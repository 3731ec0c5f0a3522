"""What a model is: an embedding, a field integrated over depth, a head; and the named models."""

from qkvflow.models.adapters import adapt as adapt
from qkvflow.models.adapters import adapter_paths as adapter_paths
from qkvflow.models.basis import depth_spectra as depth_spectra
from qkvflow.models.basis import into_basis as into_basis
from qkvflow.models.counting import count_parameters as count_parameters
from qkvflow.models.counting import forward_flops as forward_flops
from qkvflow.models.counting import training_flops as training_flops
from qkvflow.models.counting import training_memory as training_memory
from qkvflow.models.depth import at_depth as at_depth
from qkvflow.models.depth import merge as merge
from qkvflow.models.depth import unroll as unroll
from qkvflow.models.gpt2 import import_gpt2 as import_gpt2
from qkvflow.models.language_model import FlowLM as FlowLM
from qkvflow.models.language_model import LanguageModel as LanguageModel
from qkvflow.models.llama import import_llama as import_llama
from qkvflow.models.loops import into_loop as into_loop
from qkvflow.models.loops import loop_error as loop_error
from qkvflow.models.named import NeuralODELM as NeuralODELM
from qkvflow.models.named import NeuralODESSMLM as NeuralODESSMLM
from qkvflow.models.named import StandardLM as StandardLM
from qkvflow.models.named import TongNeuralODELM as TongNeuralODELM
from qkvflow.models.named import build_model as build_model
from qkvflow.models.presets import MODELS as MODELS

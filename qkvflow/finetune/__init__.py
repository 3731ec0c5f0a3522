"""How a model is adapted: another depth, other text, adapters that are kept apart from their base."""

from qkvflow.finetune.adapters import load_adapter as load_adapter
from qkvflow.finetune.adapters import save_adapter as save_adapter
from qkvflow.finetune.config import FinetuneConfig as FinetuneConfig
from qkvflow.finetune.config import finetuning_run as finetuning_run
from qkvflow.finetune.run import Finetuned as Finetuned
from qkvflow.finetune.run import finetune as finetune

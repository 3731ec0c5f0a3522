"""How a model learns: optimizer, step, loop, checkpoints, metrics."""

from qkvflow.train.evaluation import Evaluation as Evaluation
from qkvflow.train.evaluation import evaluate as evaluate
from qkvflow.train.loop import train as train
from qkvflow.train.metrics import Sink as Sink
from qkvflow.train.metrics import read_metrics as read_metrics
from qkvflow.train.optimizer import OPTIMIZERS as OPTIMIZERS
from qkvflow.train.optimizer import SCHEDULES as SCHEDULES
from qkvflow.train.outcome import Outcome as Outcome
from qkvflow.train.program import TrainingError as TrainingError
from qkvflow.train.run_files import load_model as load_model
from qkvflow.train.run_files import read_tokenizer as read_tokenizer

"""What a run is: frozen dataclasses, checked as a whole before any work starts."""

from qkvflow.config.neuralode_ssm_config import Gpt2Config as Gpt2Config
from qkvflow.config.run_config import GroupConfig as GroupConfig
from qkvflow.config.run_config import OptimizerConfig as OptimizerConfig
from qkvflow.config.run_config import RunConfig as RunConfig
from qkvflow.config.run_config import StartConfig as StartConfig
from qkvflow.config.run_config import TrainingConfig as TrainingConfig
from qkvflow.config.strict import ConfigError as ConfigError
from qkvflow.config.strict import nearest as nearest
from qkvflow.config.strict import strict as strict
from qkvflow.config.yaml_files import read_recipe as read_recipe
from qkvflow.config.yaml_files import read_run as read_run
from qkvflow.config.yaml_files import write_run as write_run

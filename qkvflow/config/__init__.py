"""What a run is: frozen dataclasses, checked as a whole before any work starts."""

from qkvflow.config.neuralode_ssm_config import Gpt2Config as Gpt2Config
from qkvflow.config.strict import ConfigError as ConfigError
from qkvflow.config.strict import nearest as nearest
from qkvflow.config.strict import strict as strict

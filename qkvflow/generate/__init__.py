"""How a model speaks: sampling with caches, a token at a time or several that a draft proposes."""

from qkvflow.generate.choosing import LEAST_TEMPERATURE as LEAST_TEMPERATURE
from qkvflow.generate.choosing import choice_problems as choice_problems
from qkvflow.generate.choosing import choose_token as choose_token
from qkvflow.generate.drafts import Drafted as Drafted
from qkvflow.generate.drafts import generate_with_drafts as generate_with_drafts
from qkvflow.generate.early import Stopped as Stopped
from qkvflow.generate.early import generate_stopping_early as generate_stopping_early
from qkvflow.generate.streaming import Stream as Stream
from qkvflow.generate.streaming import stream as stream
from qkvflow.generate.text import generate as generate

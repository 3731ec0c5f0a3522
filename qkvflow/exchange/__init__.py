"""How a model leaves: as a directory of transformers, and with a model card."""

from qkvflow.exchange.card import model_card as model_card
from qkvflow.exchange.directory import write_transformers as write_transformers

"""qkvflow's models in Levanter: trained on many devices and machines, and brought back.

Needs `requirements-levanter.txt` (docs/scaling.md); nothing else of qkvflow imports it.
"""

from qkvflow.levanter.model import QkvflowConfig as QkvflowConfig
from qkvflow.levanter.model import QkvflowLM as QkvflowLM

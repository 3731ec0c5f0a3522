"""The command `lm_eval`, to which the model `qkvflow` is known.

    python -m qkvflow.harness --model qkvflow --model_args checkpoint=runs/first --tasks lambada_openai

Versions of lm-eval after 0.4.13 find the model by its entry point, and `lm_eval` itself will do.
"""

import importlib

from lm_eval.__main__ import cli_evaluate

if __name__ == "__main__":
    importlib.import_module("qkvflow.harness.model")  # registers itself
    cli_evaluate()

"""How a model is measured by others: lm-evaluation-harness on our models, at any depth.

    lm_eval --model qkvflow --model_args checkpoint=runs/first,depth=8 --tasks lambada_openai

`model` and `tasks` need the extra lm-eval and are imported where it is asked for; nothing imports them.
"""

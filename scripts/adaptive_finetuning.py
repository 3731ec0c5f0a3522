"""Pretrain, change the depth, adapt, in both directions: two plans of `qkvflow experiment run`."""

import sys

from qkvflow.cli.main import main

STAGES = {"adaptation_bases": "results/finetune-bases", "adaptation": "results/finetune"}

if __name__ == "__main__":
    for plan, out in STAGES.items():
        command = ["experiment", "run", "--plan", plan, "--out", out, *sys.argv[1:]]
        if code := main(command, script=sys.argv[0]):
            sys.exit(code)

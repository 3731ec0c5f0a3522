"""Kill a training run at random moments, resume it, and compare its end with an uninterrupted one.

Run with `python benchmarks/kill.py`; prints what happened and writes results/kill.json. The moments
take turns: while a checkpoint is written, between steps, at any time since the process began (imports,
restoring, compiling), and at last during the final evaluation and the export. Compared are the
parameters, the optimizer's state, the curve and the best checkpoint. tests/train/test_checkpoints.py
does the same with fewer kills.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.progress import track

from qkvflow.train import read_metrics

RESULTS = Path(__file__).parent.parent / "results"
KILLS_AT_THE_END = 3
FIELDS = """
--model time_indexed_mlp --batch-size 4 --accumulate 2 --length 8 --eval-every 7 --eval-tokens 64
--save-every 3 --log-every 1 --architecture.hidden-dim 8 --architecture.num-heads 2
--architecture.num-layers 2 --architecture.mlp-ratio 1 --architecture.time-embed-dim 4
--architecture.sinusoidal-dim 2 --architecture.resid-pdrop 0.1 --optimizer.learning-rate 1e-2
"""


class Run:
    """A small run in a directory of its own."""

    def __init__(self, out, steps, seeds, fields):
        self.out = out
        self.steps = steps
        self.seeds = seeds
        self.fields = [*FIELDS.split(), *fields.split()]

    def start(self):
        """Begin, or go on."""
        command = [sys.executable, "-W", "ignore", "-m", "qkvflow", "train", *self.fields]
        command += ["--data", str(self.out.parent / "text.txt"), "--out", str(self.out)]
        command += ["--steps", str(self.steps), "--seeds", str(self.seeds)]
        environment = {
            "QKVFLOW_CACHE": str(self.out.parent / "cache"),
            "JAX_COMPILATION_CACHE_DIR": str(self.out.parent / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        output = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(command, env={**os.environ, **environment}, **output)

    def finish(self):
        """Go on to the end."""
        process = self.start()
        _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(errors.decode())

    def newest(self):
        """The step of the newest checkpoint, -1 before there is one."""
        paths = self.out.glob("checkpoints/step-*")
        return max((int(path.name[5:]) for path in paths), default=-1)

    def is_saving(self):
        """Whether a checkpoint is being written, or was when the process was killed."""
        return any(self.out.glob("checkpoints/.step*.part"))

    def kill(self, wait):
        """Start, wait for a moment, kill; returns what it was doing, None if it had ended."""
        process = self.start()
        wait(self, process)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        if process.returncode > 0:
            raise RuntimeError(errors.decode())
        if process.returncode == 0:
            return None
        return "saving" if self.is_saving() else "else"

    def end(self):
        """All that has to be the same at the end."""
        files = sorted(self.out.glob("final/**/*.safetensors"))
        files.append(self.out / "checkpoints" / f"step-{self.newest():08d}" / "optimizer.safetensors")
        kept = ("kind", "step", "seed", "loss")
        curve = [
            tuple(record.get(name) for name in kept)
            for record in read_metrics(self.out / "metrics.jsonl")
            if record["kind"] in ("train", "valid", "final")
        ]
        best = (self.out / "checkpoints" / "best").resolve(strict=True).name
        return [path.read_bytes() for path in files], curve, best


def moments(chance, kills):
    """A function for each kill that waits for its moment."""
    startup = [2.0]

    def after_a_checkpoint(run, process):
        begin, target = time.monotonic(), run.newest() + 1
        while process.poll() is None and run.newest() < target:
            time.sleep(0.002)
        startup.append(time.monotonic() - begin)

    def between_steps(run, process):
        after_a_checkpoint(run, process)
        time.sleep(chance.uniform(0, 0.02))

    def while_saving(run, process):
        after_a_checkpoint(run, process)
        while process.poll() is None:
            if run.is_saving():
                time.sleep(chance.uniform(0, 0.003))
                process.send_signal(signal.SIGSTOP)
                if run.is_saving():
                    return  # it stays at it until it is killed
                process.send_signal(signal.SIGCONT)

    def any_time(run, process):
        time.sleep(chance.uniform(0, startup[-1]))

    def at_the_end(run, process):
        while process.poll() is None and run.newest() < run.steps:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.3))

    early = [while_saving, between_steps, any_time]
    return [early[i % 3] for i in range(kills - KILLS_AT_THE_END)] + [at_the_end] * KILLS_AT_THE_END


def run_and_kill(directory, kills, seeds=1, steps_a_kill=9, fields=""):
    """Kill a run `kills` times; returns what it was doing each time and whether the ends are equal.

    Args:
        fields: further options of the run.
    """
    chance = random.Random(0)
    words = chance.choices(("weights", "are", "curves", "over", "depth"), k=1500)
    (directory / "text.txt").write_text(" ".join(words))
    steps = kills * steps_a_kill
    whole, killed = (Run(directory / name, steps, seeds, fields) for name in ("whole", "killed"))
    whole.finish()
    waits = track(moments(chance, kills), "killing", disable=not sys.stderr.isatty())
    caught = [(wait.__name__, killed.kill(wait)) for wait in waits]
    killed.finish()
    same = [a == b for a, b in zip(whole.end(), killed.end())]
    return {"kills": kills, "steps": steps, "caught": caught, "identical": all(same), "same": same}


def main(arguments=None, out=RESULTS):
    """Kill many times and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=203)
    with tempfile.TemporaryDirectory() as directory:
        result = run_and_kill(Path(directory), parser.parse_args(arguments).kills)
    caught = result.pop("caught")
    result["ended_before_the_kill"] = sum(how is None for _, how in caught)
    result["while_saving"] = sum(how == "saving" for _, how in caught)
    result["moments"] = {name: sum(n == name for n, _ in caught) for name, _ in caught}
    print(json.dumps(result, indent=2))
    (out / "kill.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

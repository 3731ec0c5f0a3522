"""Kill a training run at random moments, resume it, and compare its end with an uninterrupted one.

Run with `python benchmarks/kill.py [--kills 200]`; prints what happened and writes results/kill.json.
Half of the kills wait for a checkpoint to be under way, the others come at any moment after the run
has begun. tests/train/test_kill.py does the same with fewer kills.
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

STEPS_BETWEEN = 3
FIELDS = """
--model time_indexed_mlp --batch-size 4 --length 8 --eval-every 7 --eval-tokens 64 --save-every 1
--log-every 1 --architecture.hidden-dim 8 --architecture.num-heads 2 --architecture.num-layers 2
--architecture.mlp-ratio 1 --architecture.time-embed-dim 4 --architecture.sinusoidal-dim 2
--architecture.resid-pdrop 0.1 --optimizer.learning-rate 1e-2 --optimizer.warmup 2
"""


def start(out, steps):
    """Start or resume a small run that saves after every step."""
    command = [sys.executable, "-W", "ignore", "-m", "qkvflow", "train", *FIELDS.split()]
    command += ["--data", str(out.parent / "text.txt"), "--steps", str(steps), "--out", str(out)]
    environment = {
        "QKVFLOW_CACHE": str(out.parent / "cache"),
        "JAX_COMPILATION_CACHE_DIR": str(out.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    output = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, env={**os.environ, **environment}, **output)


def newest(out):
    """The step of the newest checkpoint, -1 before there is one."""
    return max((int(path.name[5:]) for path in out.glob("checkpoints/step-*")), default=-1)


def is_saving(out):
    """Whether a checkpoint is being written."""
    return any(out.glob("checkpoints/.*.part"))


def kill_once(out, steps, chance, while_saving):
    """Start or resume the run and kill it; returns how it was caught, or None if it ended first."""
    target = newest(out) + chance.randint(1, STEPS_BETWEEN)
    process = start(out, steps)
    while process.poll() is None and newest(out) < target:
        time.sleep(0.002)
    while process.poll() is None and while_saving and not is_saving(out):
        pass
    time.sleep(chance.uniform(0, 0.003 if while_saving else 0.02))
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    if process.returncode > 0:
        raise RuntimeError(errors.decode())
    if process.returncode == 0:
        return None
    return "saving" if is_saving(out) else "stepping"


def finish(out, steps):
    """Run to the end."""
    process = start(out, steps)
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(errors.decode())


def last_files(out):
    """The parameters and the optimizer's state at the end."""
    last = out / "checkpoints" / f"step-{newest(out):08d}"
    files = (out / "final" / "model.safetensors", last / "optimizer.safetensors")
    return [path.read_bytes() for path in files]


def run_and_kill(directory, kills, seed=0):
    """Kill a run `kills` times; returns what it was doing each time and whether the ends are equal."""
    chance, text = random.Random(seed), directory / "text.txt"
    text.write_text(" ".join(chance.choices(("weights", "are", "curves", "over", "depth"), k=1500)))
    # Each kill advances the run by at most this many steps and what it does before it is caught.
    steps = kills * (STEPS_BETWEEN + 3)
    finish(directory / "whole", steps)
    caught = [
        kill_once(directory / "killed", steps, chance, i % 2 == 0)
        for i in track(range(kills), "killing", disable=not sys.stderr.isatty())
    ]
    at = newest(directory / "killed")
    finish(directory / "killed", steps)
    same = last_files(directory / "whole") == last_files(directory / "killed")
    return {"kills": kills, "steps": steps, "last_kill_at": at, "caught": caught, "identical": same}


def main():
    """Kill many times and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    with tempfile.TemporaryDirectory() as directory:
        result = run_and_kill(Path(directory), parser.parse_args().kills)
    caught = result.pop("caught")
    result |= {how: caught.count(how) for how in ("saving", "stepping")}
    result["ended_before_the_kill"] = caught.count(None)
    print(json.dumps(result, indent=2))
    out = Path(__file__).parent.parent / "results" / "kill.json"
    out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Faults that a machine has: kills, a full disk, a clock that jumps back; what they cost is compared.

Run with `python -m benchmarks.faults`; prints what happened and writes results/faults.json. Each fault
is done to a fine-tuning or to an experiment of a few small runs, whose end has to be that of one that
was left alone: parameters to the byte, records but for their times. The full disk needs the right to
mount.
"""

import argparse
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import yaml
from rich.progress import track

RESULTS = Path(__file__).parent.parent / "results"
TIMES = ("began", "ended", "seconds", "ms_per_step", "machine")
SHAPE = {"hidden_dim": 8, "num_heads": 2, "num_layers": 2, "mlp_ratio": 1}
SHAPE |= {"time_embed_dim": 4, "sinusoidal_dim": 2}
RUN = {"steps": 24, "batch_size": 4, "length": 8, "eval_every": 6, "eval_tokens": 64, "save_every": 3}
CLOCK = """
import datetime, time
begun, real, kind = time.monotonic(), time.time, datetime.datetime
shift = lambda: -3600.0 if time.monotonic() - begun > JUMP else 0.0
time.time = lambda: real() + shift()
class Jumping(kind):
    @classmethod
    def now(cls, zone=None):
        return kind.now(zone) + datetime.timedelta(seconds=shift())
datetime.datetime = Jumping
"""


class Place:
    """A directory with a text, plans, and what is run there."""

    def __init__(self, directory):
        self.directory = directory
        words = random.Random(0).choices(("weights", "are", "curves", "over", "depth"), k=1500)
        (directory / "text.txt").write_text(" ".join(words))
        base = {**RUN, "data": str(directory / "text.txt"), "tokenizer": "byte"}
        self._plan("bases", base | {"architecture": SHAPE}, {"a": {"model": "time_indexed_mlp"}})
        arms = {
            "full": {"start": {"arm": "bases/a", "depth": 3}},
            "lora": {
                "start": {"arm": "bases/a", "train": "adapter"},
                "architecture": {"adapter": {"method": "lora", "rank": 2}},
            },
        }
        self._plan("adaptation", base, arms)

    def _plan(self, name, base, arms):
        plan = {"base": base, "arms": arms, "seeds": 2}
        (self.directory / f"{name}.yaml").write_text(yaml.safe_dump(plan))

    def start(self, *command, **environment):
        """Begin a command, or go on with it."""
        fixed = {
            "QKVFLOW_CACHE": str(self.directory / "cache"),
            "JAX_COMPILATION_CACHE_DIR": str(self.directory / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        whole = [sys.executable, "-W", "ignore", "-m", "qkvflow", *map(str, command)]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(whole, env={**os.environ, **fixed, **environment}, **output)

    def finish(self, *command, **environment):
        """Go on to the end."""
        process = self.start(*command, **environment)
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(output)

    def kill(self, chance, longest, out, *command):
        """Kill a command at any moment of its first seconds; whether it had ended, begun or neither.

        It has begun when it has written something to `out`.
        """
        begin, process = time.time(), self.start(*command)
        time.sleep(chance.uniform(0, longest))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode >= 0:
            return "ended"
        begun = any(path.lstat().st_mtime > begin for path in out.rglob("*"))
        return "caught" if begun else "too early"

    def experiment(self, plan, out):
        """The command that runs a plan."""
        return ("experiment", "run", "--plan", self.directory / f"{plan}.yaml", "--out", out)


def records(out):
    """What an experiment recorded, but for times and places."""
    found = {}
    for path in sorted(out.glob("runs/*/seed-*.json")):
        content = json.loads(path.read_text())
        content = {name: value for name, value in content.items() if name not in TIMES}
        content["curve"] = [(step, loss) for step, _, loss in content["curve"]]
        if content["run"].get("start"):
            content["run"]["start"]["checkpoint"] = ""
        found[str(path.relative_to(out))] = content
    return found


def trained(out):
    """The bytes of all that a run trained."""
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*.safetensors"))}


def kill_again_and_again(place, chance, kills, command, read):
    """Kill a command until it was caught at work so often; once it has ended, it is begun anew.

    Args:
        command: of the directory that it writes to.
        read: what of that directory has to be as in one that was left alone.
    """
    whole, again, out = (place.directory / name for name in ("whole", "again", "killed"))
    place.finish(*command(whole))  # from here on all is compiled
    begin = time.monotonic()
    place.finish(*command(again))
    longest, found = time.monotonic() - begin, Counter()
    same = read(whole) == read(again)
    while found["caught"] < kills:
        found[state := place.kill(chance, longest, out, *command(out))] += 1
        if state == "ended":
            same = same and read(out) == read(whole)
            shutil.rmtree(out)
    place.finish(*command(out))
    counts = {"caught": found["caught"], "too_early": found["too early"], "ended": found["ended"]}
    return {**counts, "identical": same and read(out) == read(whole)}


def kills_while_fine_tuning(directory, kills):
    """A fine-tuning with an adapter, killed again and again."""
    place, chance = Place(directory), random.Random(1)
    place.finish(*place.experiment("bases", directory / "bases"))
    base = directory / "bases" / "runs" / "a" / "seed-0"
    options = ["finetune", "--checkpoint", base, "--data", directory / "text.txt", "--method", "lora"]
    options += ["--rank", "2", "--steps", "60", "--save-every", "3", "--eval-every", "6", "--out"]

    def kept(out):
        return trained(out / "final"), trained(out / "adapter")

    return kill_again_and_again(place, chance, kills, lambda out: (*options, out), kept)


def kills_in_an_adaptation(directory, kills):
    """An experiment whose runs start from those of another one, killed again and again."""
    place, chance = Place(directory), random.Random(2)
    place.finish(*place.experiment("bases", directory / "bases"))
    command = functools.partial(place.experiment, "adaptation")
    return kill_again_and_again(place, chance, kills, command, records)


def full_disk(directory, _):
    """An experiment on a disk that is full before its records are written, and then is not."""
    place = Place(directory)
    place.finish(*place.experiment("bases", directory / "whole"))
    small = directory / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o"]
    if subprocess.run(
        [*mount, "size=200k", "tmpfs", small], capture_output=True, check=False
    ).returncode:
        return {"left_out": "mounting needs more rights"}
    try:
        process = place.start(*place.experiment("bases", small / "out"))
        output, _ = process.communicate()
        subprocess.run([*mount, "remount,size=64m", "tmpfs", small], check=True)
        place.finish(*place.experiment("bases", small / "out"))
        same = records(directory / "whole") == records(small / "out")
    finally:
        subprocess.run(["umount", small], check=True)
    said = [line for line in output.splitlines() if "No space left" in line]
    return {
        "exit_code": process.returncode,
        "traceback": "Traceback" in output,
        "said": bool(said),
        "identical": same,
    }


def clock_that_jumps_back(directory, _):
    """An experiment in which the time of day jumps back an hour, in two processes that share it."""
    place = Place(directory)
    place.finish(*place.experiment("bases", directory / "whole"))
    (directory / "clock").mkdir()
    (directory / "clock" / "sitecustomize.py").write_text(CLOCK.replace("JUMP", "5.0"))
    paths = f"{directory / 'clock'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = place.experiment("bases", directory / "jumped")
    both = [place.start(*command, PYTHONPATH=paths), place.start(*command)]
    outputs = [process.communicate()[0] for process in both]
    codes = [process.returncode for process in both]
    if any(codes):
        raise RuntimeError("\n".join(outputs))
    return {"identical": records(directory / "whole") == records(directory / "jumped")}


FAULTS = (kills_while_fine_tuning, kills_in_an_adaptation, full_disk, clock_that_jumps_back)


def main(arguments=None, out=RESULTS):
    """Do every fault and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="of each command, while it is at work")
    kills = parser.parse_args(arguments).kills
    found = {}
    for fault in track(FAULTS, "faults", disable=not sys.stderr.isatty()):
        with tempfile.TemporaryDirectory() as directory:
            found[fault.__name__] = fault(Path(directory), kills)
    print(json.dumps(found, indent=2))
    (out / "faults.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""How long a user waits for a loss: a plain GPT in torch with AdamW, and the recipe of this library.

Run with `python -m benchmarks.time_to_loss` (torch: `pip install -e ".[peers]"`) on a machine that has
nothing else to do; prints what it finds and writes results/time_to_loss.json. Both read the same
batches of characters of WikiText-2, have the same width, layers and batch, and are evaluated on the
same tokens of its valid split. They are processes of their own that take turns of a few steps. The time
until the loss is at most the goal counts, with making the model and compiling, without evaluations.

The peer gets its best learning rate and length of run (over which the rate decays): all are tried
first, a try ending when it cannot beat the best one so far. Tries count steps, not seconds, so that
other work does not disturb them: `--sweep` does no more, keeps them in the file, and the race takes
them from there (`--rate`, `--steps`: known ones). Ours has the recipe of `qkvflow train`, and one
length of run.
"""

import argparse
import itertools
import multiprocessing
import time
import traceback
from pathlib import Path

import jax
import numpy as np

from benchmarks.speed.contest import ContestError, measured
from benchmarks.speed.lines import peers_are_installed
from benchmarks.speed.ours import Shape
from qkvflow.config import RunConfig, read_recipe
from qkvflow.config.yaml_files import merged
from qkvflow.data import batch_at, eval_windows
from qkvflow.files import read_json, write_json
from qkvflow.memory import keep_freed_memory
from qkvflow.provenance import machine
from qkvflow.train import evaluate
from qkvflow.train.evaluation import count_windows
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data

RESULTS = Path(__file__).parent.parent / "results"
DATA, SHAPE = "wikitext-2", Shape(hidden=128, heads=4, layers=4, length=128, batch=16)
GOAL = 1.50
"""Nats per character of the valid split."""
BOUND = 0.25
"""What our time may be of the peer's."""
TURN = 25
"""Steps between evaluations."""
EVALUATED = 65_536
"""Tokens of the valid split, evenly spaced."""
STEPS = 250
"""Length of our run."""
RATES = (1e-3, 2e-3, 4e-3, 8e-3)
LENGTHS = (1000, 1500, 2000)
"""Learning rates and lengths of run that the peer is tried with."""


def our_run(steps):
    """The run as `qkvflow train` would have it."""
    own = {
        "model": "standard",
        "data": DATA,
        "steps": steps,
        "batch_size": SHAPE.batch,
        "length": SHAPE.length,
        "architecture": {
            "hidden_dim": SHAPE.hidden,
            "num_heads": SHAPE.heads,
            "num_layers": SHAPE.layers,
        },
    }
    return RunConfig.from_dict(merged(read_recipe(), own))


class Ours:
    """`standard` in training."""

    def __init__(self, steps, rate=None):
        keep_freed_memory()
        run = our_run(steps)
        self.data = open_data(run)
        begin = time.perf_counter()
        self.program = Program(run, self.data)
        self.setup, self.rate = time.perf_counter() - begin, run.optimizer.learning_rate

    def step(self, number):
        """One step of training."""
        self.program.step(number).loss.block_until_ready()

    def loss(self):
        """On the part of the valid split."""
        sizes = {"length": SHAPE.length, "batch_size": SHAPE.batch, "tokens": EVALUATED}
        return evaluate(self.program.model(0), self.data["valid"], **sizes).loss


class Torch:
    """A GPT of torch in training."""

    def __init__(self, steps, rate, compiled=False):
        from benchmarks.torch_gpt import Learner

        self.data = open_data(our_run(steps))
        begin = time.perf_counter()
        shape = (SHAPE.hidden, SHAPE.heads, SHAPE.layers, SHAPE.length)
        self.learner = Learner(self.data.tokenizer.vocab_size, *shape, rate, steps, compiled)
        self.setup, self.rate = time.perf_counter() - begin, rate

    def step(self, number):
        """One step of training, with the batch that ours has."""
        batch = {"seed": 0, "step": number, "batch_size": SHAPE.batch, "length": SHAPE.length}
        inputs, targets = batch_at(self.data["train"].ids, digest=self.data.digest, **batch)
        self.learner.step(number, inputs, targets)

    def loss(self):
        """On the part of the valid split that ours is evaluated on."""
        valid = self.data["valid"]
        windows = count_windows(valid, SHAPE.length, EVALUATED)
        total = count = 0.0
        for inputs, targets, mask in eval_windows(valid.ids, SHAPE.length, SHAPE.batch, windows):
            losses = self.learner.window_losses(inputs, targets)
            total, count = total + np.sum(losses * mask, dtype=np.float64), count + mask.sum()
        return float(total / count)


class CompiledTorch(Torch):
    """The same, by `torch.compile`."""

    def __init__(self, steps, rate):
        super().__init__(steps, rate, compiled=True)


KINDS = {"qkvflow": Ours, "torch": Torch, "torch, compiled": CompiledTorch}


def turns(learner, steps):
    """Train turn by turn; of each, the steps so far, their seconds with the making, and the loss."""
    seconds = learner.setup
    for first in range(0, steps, TURN):
        begin, last = time.perf_counter(), min(first + TURN, steps)
        for number in range(first, last):
            learner.step(number)
        seconds += time.perf_counter() - begin
        yield last, seconds, learner.loss()


def serve(pipe, kind, steps, rate):
    """The life of a process: make a learner, take a turn whenever one is asked for."""
    try:
        learner = KINDS[kind](steps, rate)
        pipe.send({"rate": learner.rate, "steps": steps})
        made = turns(learner, steps)
        while True:
            pipe.recv()
            pipe.send(next(made))
    except EOFError:
        return
    except Exception:
        pipe.send(traceback.format_exc(limit=-3))


class Racer:
    """A learner in a process of its own, and what is known of it."""

    def __init__(self, kind, steps, rate=None):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, kind, steps, rate), daemon=True)
        self._process.start()
        theirs.close()
        self.steps, self.curve = steps, []
        self.facts = self._answer()

    def _answer(self):
        try:
            answer = self._pipe.recv()
        except EOFError as error:
            raise ContestError("the process ended without an answer") from error
        if isinstance(answer, str):
            raise ContestError(answer)
        return answer

    @property
    def is_there(self):
        """Whether the loss is at most the goal."""
        return bool(self.curve) and self.curve[-1][2] <= GOAL

    @property
    def is_done(self):
        """Whether there is nothing left to do."""
        return self.is_there or (bool(self.curve) and self.curve[-1][0] == self.steps)

    def turn(self):
        """Take a turn."""
        self._pipe.send(None)
        self.curve.append(self._answer())

    def record(self):
        """What came of it; seconds are None where it did not get there."""
        seconds = self.curve[-1][1] if self.is_there else None
        return {**self.facts, "seconds": seconds, "curve": [list(point) for point in self.curve]}

    def close(self):
        """End the process."""
        self._pipe.close()
        self._process.terminate()
        self._process.join()


def race(racers):
    """Let learners take turns until all are there, or have come to their ends; their records."""
    try:
        while any(not racer.is_done for racer in racers.values()):
            for racer in racers.values():
                if not racer.is_done:
                    racer.turn()
        return {name: racer.record() for name, racer in racers.items()}
    finally:
        for racer in racers.values():
            racer.close()


def steps_needed(kind, steps, rate, fewer_than):
    """Steps until a learner is there, alone; None if that takes all its steps, or as many as these."""
    racer = Racer(kind, steps, rate)
    try:
        while not racer.is_done and (not racer.curve or racer.curve[-1][0] < fewer_than):
            racer.turn()
        last = racer.curve[-1]
        return last[0] if racer.is_there and last[0] < fewer_than else None
    finally:
        racer.close()


def kept_tries(path):
    """The tries of a sweep for the same goal that a file has."""
    record = read_json(path) if path.is_file() else {}
    return record["sweep"] if record.get("goal") == GOAL else []


def best_of(tries):
    """Steps needed, length of run and learning rate of the best try."""
    there = [(of["needed"], of["steps"], of["rate"]) for of in tries if of["needed"] is not None]
    return min(there, default=(max(LENGTHS) + 1, max(LENGTHS), RATES[0]))


def sweep(path):
    """The steps that the peer needs at every learning rate and length of run, kept in a file."""
    tries = kept_tries(path)
    known = {(of["steps"], of["rate"]) for of in tries}
    for length, rate in itertools.product(LENGTHS, RATES):
        if (length, rate) not in known:
            needed = steps_needed("torch", length, rate, best_of(tries)[0])
            print(f"torch, rate {rate:g}, {length} steps: {needed or 'not sooner'}", flush=True)
            tries.append({"steps": length, "rate": rate, "needed": needed})
            write_json(path, {"goal": GOAL, "sweep": tries})
    return tries


def entries(steps, rate):
    """Who takes part: ours, and torch where it is installed, compiled where that works."""
    racers = {"qkvflow": Racer("qkvflow", STEPS)}
    if rate is not None:
        racers["torch"] = Racer("torch", steps, rate)
        try:
            racers["torch, compiled"] = Racer("torch, compiled", steps, rate)
            racers["torch, compiled"].turn()
        except ContestError as error:
            racers.pop("torch, compiled", None)
            print(f"torch.compile does not work here: {str(error).strip().splitlines()[-1]}")
    return racers


def finding(records):
    """Our time over that of the fastest peer that got there, and whether the bound holds."""
    ours = records["qkvflow"]["seconds"]
    peers = [of["seconds"] for name, of in records.items() if name != "qkvflow" and of["seconds"]]
    if ours is None or not peers:
        return {"ratio": None, "at_most": BOUND, "holds": False if peers else None}
    ratio = ours / min(peers)
    return {"ratio": ratio, "at_most": BOUND, "holds": ratio <= BOUND}


def main(arguments=None, out=RESULTS):
    """Sweep the peer unless its settings are given, race, write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=float, help="learning rate of the peer, instead of a sweep")
    parser.add_argument(
        "--steps", type=int, default=LENGTHS[0], help="length of the peer's run, with --rate"
    )
    parser.add_argument("--sweep", action="store_true", help="the sweep alone, beside other work")
    options = parser.parse_args(arguments)
    path, tries, steps, rate = out / "time_to_loss.json", [], options.steps, options.rate
    if rate is None and peers_are_installed():
        tries = sweep(path)
        _, steps, rate = best_of(tries)
    if options.sweep:
        return
    records = race(entries(steps, rate))
    found = finding(records)
    for name, of in records.items():
        reached = "not reached" if of["seconds"] is None else f"{of['seconds'] / 60:.2f} minutes"
        print(f"{name}: {GOAL} nats per character: {reached}, after {of['curve'][-1][0]} steps")
    print(f"Our time over the fastest peer's: {found['ratio']}; at most {BOUND}: {found['holds']}")
    record = {
        "goal": GOAL,
        **found,
        "contestants": records,
        "sweep": tries,
        "machine": machine(),
        "jax": jax.__version__,
        "measured": measured(),
    }
    write_json(path, record)


if __name__ == "__main__":
    main()

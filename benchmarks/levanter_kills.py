"""Again and again one of two processes that train with Levanter is killed, and both start again.

    python -m benchmarks.levanter_kills
    python -m benchmarks.levanter_kills --kills 3

Two processes train on loopback, saving every few steps. At a random moment after they have saved, one
of them, chosen at random, is killed; the other, which would wait for it, is ended, as a launcher does;
both start again. Every step's loss is then compared with that of one process that nothing disturbed.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.levanter.support import command, environment, losses_in, train, write_files

OUT = Path(__file__).parent.parent / "results" / "levanter_kills.json"
STEPS = 60
OPTIONS = ("--trainer.num_train_steps", str(STEPS), "--trainer.steps_per_eval", "1000")
OPTIONS += ("--trainer.checkpointer.keep", "[{every: 3}]")


def started(folder: Path, log: Path) -> list[subprocess.Popen]:
    """Two processes that train together; what both say goes to one file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    several = ("--trainer.distributed.coordinator_address", address)
    several += ("--trainer.distributed.num_processes", "2", "--trainer.distributed.process_id")
    words = command("train", "--config", "run.yaml", "--trainer.id", "killed", *OPTIONS, *several)
    with log.open("a") as out:
        return [
            subprocess.Popen([*words, str(i)], cwd=folder, env=environment(), stdout=out, stderr=out)
            for i in (0, 1)
        ]


def saved(folder: Path) -> int:
    """Whole checkpoints of the run."""
    return len(list((folder / "checkpoints" / "killed").glob("step-*/metadata.json")))


def kill_one(folder: Path, log: Path, choose: random.Random) -> dict:
    """Start both, let them train for a while, kill one, end the other."""
    before = saved(folder)
    both = started(folder, log)
    while saved(folder) == before and all(process.poll() is None for process in both):
        time.sleep(0.2)
    assert all(process.poll() is None for process in both), log.read_text()[-2000:]
    time.sleep(choose.uniform(0, 2))
    which = choose.randrange(2)
    both[which].send_signal(signal.SIGKILL)
    time.sleep(choose.uniform(0, 1))
    left = both[1 - which].poll()
    for process in both:
        process.kill()
        process.wait()
    resumed = re.findall(r"Resuming training from step (\d+)", log.read_text())
    from_step = int(resumed[-1]) if before else 0
    return {"killed": which, "other_still_there": left is None, "had_begun_at_step": from_step}


def main() -> None:
    """Kill, finish, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    options = parser.parse_args()
    choose = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_files(folder)
        unbroken = train(folder, "unbroken", *OPTIONS)
        log = folder / "killed.log"
        kills = [kill_one(folder, log, choose) for _ in range(options.kills)]
        codes = [process.wait() for process in started(folder, log)]
        resumed = losses_in(log.read_text())
    error = max(abs(resumed[step] - unbroken[step]) for step in resumed)
    found = {"kills": kills, "last": codes, "steps": len(unbroken), "compared": len(resumed)}
    content = {**found, "largest_difference": error, "cores": os.cpu_count()}
    OUT.write_text(json.dumps(content, indent=1) + "\n")
    print(content)
    sys.exit(0 if codes == [0, 0] and resumed.keys() == unbroken.keys() and error < 1e-5 else 1)


if __name__ == "__main__":
    main()

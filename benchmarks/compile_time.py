"""The time to compile a training step at 48 layers against 6, of every named model.

Run with `python -m benchmarks.compile_time`; prints a table and writes results/compile_time.json. The
test of the same name compiles with flags that make the test suite fast; this is what a user has.
"""

import json
from pathlib import Path

from rich.progress import track

from qkvflow.models import MODELS
from tests.models.test_training import seconds_to_compile_a_training_step

DEPTHS = (6, 48)


def main():
    """Measure every model once, in seconds of this process's threads."""
    rows = {}
    for name in track(MODELS, "compiling"):
        rows[name] = {depth: seconds_to_compile_a_training_step(name, depth) for depth in DEPTHS}
    for name, seconds in rows.items():
        print(f"{name:<18} 48 layers / 6 layers = {seconds[48] / seconds[6]:.2f}")
    ratios = {name: seconds[48] / seconds[6] for name, seconds in rows.items()}
    out = Path(__file__).parent.parent / "results" / "compile_time.json"
    out.write_text(json.dumps({"seconds": rows, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()

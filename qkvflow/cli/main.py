"""The command `qkvflow`: finds the file of the command named first and hands it the rest."""

import importlib
import sys

from qkvflow import __version__
from qkvflow.config import ConfigError, nearest
from qkvflow.data import DataError
from qkvflow.files import FileError
from qkvflow.memory import keep_freed_memory
from qkvflow.plugins import load_installed, without_plugins

COMMANDS = {
    "compare": "Train every named model for a few steps on a little text and show what differs.",
    "train": "Train a model on any text; started again, it goes on where it stopped.",
    "evaluate": "The loss of a trained model on a whole split of a text.",
    "generate": "Continue a text with a trained model, at any depth.",
    "finetune": "Adapt a trained model to other text, at its own depth or another.",
    "convert": "Import GPT-2, or turn a model into combinations of a few basis matrices.",
    "tune": "Sweep the learning rate of every arm of an experiment.",
    "validate": "Compare models over paired seeds: sweep, runs, statistics.",
    "ablate": "Change one choice of a model at a time, over paired seeds.",
    "flops": "What the arms of an experiment cost: parameters, operations, memory, time.",
    "adaptation": "Pretrain, change the depth, adapt to another text: the ICLR paper's experiment.",
    "figures": "Draw the figures of an experiment, and its table in LaTeX.",
    "report": "Write one page with all of an experiment.",
    "bench": "Measure how fast this machine trains and generates, against what you would use instead.",
    "analyze": "Look inside a trained model: spectra, Lyapunov exponents, trajectories, modulation.",
    "export": "Write a trained model, at its own depth or another, to a directory of its own.",
}
LONG = ("compare", "train", "finetune", "tune", "validate", "ablate", "adaptation", "bench")
"""Commands that repeat one large computation."""


def usage() -> str:
    """What `qkvflow --help` prints."""
    lines = [f"  {name:<10} {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            f"qkvflow {__version__}: language models whose weights are functions of depth.",
            "",
            "Usage: qkvflow COMMAND [OPTIONS]      qkvflow COMMAND --help explains the options.",
            "Any command takes --plugin FILE: Python of your own that registers what the options name.",
            "",
            "Commands:",
            *lines,
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code. A mistake of the user is one sentence, no traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    name, *rest = given or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        print(__version__)
        return 0
    if name not in COMMANDS:
        print(f"There is no command {name!r}. {nearest(name, COMMANDS)}", file=sys.stderr)
        return 2
    if arguments is None and name in LONG:
        keep_freed_memory()  # before anything starts JAX
    import tyro  # late: `qkvflow --help` answers at once

    from qkvflow.cli import variants

    try:
        load_installed()
        rest = without_plugins(rest)  # before the options are parsed, which may name what they register
        module = importlib.import_module(f"qkvflow.cli.{name}")
        defaults = module.defaults(rest) if hasattr(module, "defaults") else None
        prog = f"qkvflow {name}"
        options = tyro.cli(
            module.Options,
            prog=prog,
            description=module.__doc__,
            args=rest,
            default=defaults,
            registry=variants.registry(),
        )
        return module.run(options) or 0
    except (ConfigError, DataError, FileError) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        print(f"{error.filename} cannot be used: {error.strerror}. Name another one.", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(str(error) or "Interrupted.", file=sys.stderr)
        return 130

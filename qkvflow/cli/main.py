"""The command `qkvflow`: finds the module of the command named first and passes it the rest."""

import importlib
import io
import keyword
import sys
from typing import Any

from qkvflow import __version__
from qkvflow.config import ConfigError, nearest
from qkvflow.data import DataError
from qkvflow.files import FileError
from qkvflow.interrupt import INTERRUPTED, leave, leave_when_interrupted
from qkvflow.memory import keep_freed_memory
from qkvflow.plugins import OPTION, load_installed, load_plugins

COMMANDS = {
    "compare": "Train every named model briefly on a small text and compare them.",
    "train": "Train a model on any text, or resume an interrupted run.",
    "evaluate": "Measure the loss of a trained model on a whole split of a text.",
    "generate": "Continue a text with a trained model, at any depth.",
    "report": "Write a report on one run: loss curve, costs, settings, sample text, n-grams.",
    "finetune": "Fine-tune a trained model on another text, at its own depth or another.",
    "import": "Import a GPT-2 or Llama model from Hugging Face files.",
    "download": "Download WikiText or GPT-2 to where the other commands find it.",
    "export": "Export a model: at another depth, as a few basis matrices, for transformers.",
    "experiment": "Compare models over paired seeds: sweeps, runs, statistics, costs, a report.",
    "analyze": "Look inside a trained model: spectra, Lyapunov exponents, trajectories, modulation.",
    "levanter": "Train with Levanter on many devices or machines; convert models both ways.",
}
GROUPS = {
    "experiment": {
        "run": "Tune and train every arm of a plan, test differences, report.",
        "tune": "Only sweep the learning rate of every arm of a plan.",
        "ablate": "Run the plan `ablation`: change one design choice at a time.",
        "cost": "Show what each arm costs: parameters, operations, memory, time.",
        "report": "Write a report on finished experiments, and figures for print.",
        "pack": "Pack each finished experiment into a handful of files.",
    },
    "levanter": {
        "train": "Train a model with Levanter, or resume an interrupted run.",
        "import": "Convert a Levanter checkpoint to a model for qkvflow.",
        "export": "Convert a model to a checkpoint that a Levanter run can start from.",
    },
}
"""Commands that have commands of their own."""
LONG = {
    *("compare", "train", "finetune", "levanter train"),
    *("experiment run", "experiment tune", "experiment ablate"),
}
"""Commands that repeat one large computation, and resume where they stopped."""
GOES_ON = "; run the same command again to resume"
HELP = ("-h", "--help", "help")


def usage(group: str | None = None) -> str:
    """What `qkvflow --help` prints, or `qkvflow GROUP --help`."""
    commands = COMMANDS if group is None else GROUPS[group]
    name = "qkvflow" if group is None else f"qkvflow {group}"
    about = f"qkvflow {__version__}: language models whose weights are functions of depth."
    lines = [
        about if group is None else COMMANDS[group],
        "",
        f"Usage: {name} COMMAND [OPTIONS]",
        f"       {name} COMMAND --help explains the options.",
        "Every command takes --plugin FILE, a Python file that registers your variants.",
        "",
        "Commands:",
    ]
    return "\n".join(lines + [f"  {name:<10} {summary}" for name, summary in commands.items()])


def main(arguments: list[str] | None = None, script: str | None = None) -> int:
    """Run one command; returns the exit code. A mistake of the user is one sentence, no traceback.

    Args:
        script: what the user called, where that is a script which stands for a command.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    given = sys.argv[1:] if arguments is None else arguments
    name, *rest = given or ["--help"]
    if name in ("-V", "--version"):
        print(__version__)
        return 0
    group = name if name in GROUPS else None
    if group is not None:
        name, *rest = rest or ["--help"]
    if name in HELP:
        print(usage(group))
        return 0
    known = COMMANDS if group is None else GROUPS[group]
    if name not in known:
        what = "command" if group is None else f"{group} command"
        print(f"There is no {what} {name!r}. {nearest(name, known)}", file=sys.stderr)
        return 2
    command = name if group is None else f"{group} {name}"
    sentence = f"Interrupted{GOES_ON if command in LONG else ''}."
    if arguments is None:
        if command in LONG:
            keep_freed_memory()  # before there is a second thread
        leave_when_interrupted(sentence)
    try:
        return _run(command, rest, script or f"qkvflow {command}")
    except KeyboardInterrupt as error:
        if arguments is None:
            leave(str(error) or sentence)
        print(str(error) or sentence, file=sys.stderr)
        return INTERRUPTED


def _run(command: str, options: list[str], program: str) -> int:
    import tyro  # late: `qkvflow --help` answers at once

    from qkvflow.cli.options import OptionError, help_on, registry, split_option
    from qkvflow.compiled import keep_compiled
    from qkvflow.train import TrainingError

    try:
        keep_compiled()
        load_installed()
        files, options = split_option(options, OPTION)
        load_plugins(files)  # first: the options may name what they register
        module = importlib.import_module(module_of(command))
        rules = registry()
        options, more = help_on(options, getattr(module, "OFTEN", {}), rules)
        defaults = module.defaults(options) if hasattr(module, "defaults") else None
        hands_on = hasattr(module, "HANDS_ON")  # options that it has not itself
        parse: Any = tyro.cli
        chosen = parse(
            module.Options,
            prog=program,
            description=f"{module.__doc__}{more}",
            args=options,
            default=defaults,
            registry=rules,
            return_unknown_args=hands_on,
        )
        return module.run(*chosen if hands_on else (chosen,)) or 0
    except (ConfigError, DataError, FileError, OptionError) as error:
        print(error, file=sys.stderr)
        return 2
    except TrainingError as error:
        print(error, file=sys.stderr)
        return 3
    except OSError as error:
        if error.filename is None:
            raise
        print(f"{error.filename} cannot be used: {error.strerror}. Name another path.", file=sys.stderr)
        return 2


def module_of(command: str) -> str:
    """The module of a command; none can be named import."""
    names = (f"{word}_" if keyword.iskeyword(word) else word for word in command.split())
    return ".".join(("qkvflow.cli", *names))

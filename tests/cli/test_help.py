"""Every option and every field has a help text that stands alone: read without the one before it."""

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
import typing
from pathlib import Path

import pytest

from qkvflow.cli.main import COMMANDS, GROUPS, main, module_of
from qkvflow.config import StartConfig
from qkvflow.config.variants import ADAPTERS, FAMILIES, INTEGRATORS, PARTS
from qkvflow.experiments.plan import Arm, ArmStart, Plan
from qkvflow.experiments.sweep import Sweep

NAMES = [name for name in COMMANDS if name not in GROUPS]
NAMES += [f"{group} {name}" for group, commands in GROUPS.items() for name in commands]
LEANS_ON_ANOTHER = [
    r"^(Of|As|As for|The same|Not one of|Where|Those|These|That|This|Their|Its|It|Them|They)\b",
    r"(?i)\b(largest|smallest|most|some|one|each|all) of (them|these|those)\b",
    r"\bas for\b",
    r"(?i)\blook(s|ed)?\b",  # the field's word is evaluation
    r"(?i)\bfloor\b|\bfrontier\b|\btold apart\b|\bg(i|a)ves? back\b",  # baseline, Pareto-optimal, ...
    r"\b(nats|bits|bytes|tokens|steps|one|pair) an? (byte|token|layer|step|second)\b",  # per
]
"""Beginnings that say of what only to those who have read the text before, and words like them."""


def reachable(cls, found):
    """A dataclass and those that its fields hold, at any depth."""
    if dataclasses.is_dataclass(cls) and cls not in found:
        found.add(cls)
        for kind in typing.get_type_hints(cls).values():
            for inner in (kind, *typing.get_args(kind)):
                reachable(inner, found)
    return found


def texts_of(cls):
    """The texts under the fields of a class, its own and those that it has from others, by name."""
    texts = {}
    for owner in reversed(cls.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        for node, after in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                texts[node.target.id] = after.value.value if is_text else None
    return texts


def classes():
    found = set()
    for name in NAMES:
        reachable(importlib.import_module(module_of(name)).Options, found)
    for cls in (StartConfig, Sweep, Arm, ArmStart, Plan):
        reachable(cls, found)
    for variants in (FAMILIES, PARTS, INTEGRATORS, ADAPTERS):
        found |= {variants[name] for name in variants if dataclasses.fields(variants[name])}
    return sorted(found, key=lambda cls: (cls.__module__, cls.__name__))


@pytest.mark.parametrize("cls", classes(), ids=lambda c: f"{c.__module__}.{c.__name__}")
def test_every_text_stands_alone(cls):
    found = texts_of(cls)
    texts = {field.name: found[field.name] for field in dataclasses.fields(cls)}
    assert not [name for name, text in texts.items() if not text]
    leaning = {
        name: text
        for name, text in texts.items()
        if any(re.search(pattern, text) for pattern in LEANS_ON_ANOTHER)
    }
    assert not leaning


@pytest.mark.parametrize(
    "text",
    [
        "Of the choices.",
        "The same for the look at the end.",
        "As for `qkvflow validate`: steps, or also parameters or training FLOPs.",
        "Its peak, after warm-up.",
        "Largest of them, if sinusoidal.",
        "A corpus or a path to text, as for `qkvflow train`.",
        "Share of the text's bytes that the tokenizer gives back.",
        "Mean loss in nats a token.",
    ],
)
def test_texts_that_were_there_once_would_be_refused(text):
    assert any(re.search(pattern, text) for pattern in LEANS_ON_ANOTHER)


NEEDED = {
    "analyze": ["spectra", "--checkpoint", "none"],
    "download": ["wikitext-2"],
    "evaluate": ["--checkpoint", "none"],
    "export": ["--checkpoint", "none", "--out", "none"],
    "finetune": ["--out", "none", "--checkpoint", "none"],
    "generate": ["--checkpoint", "none", "--prompt", "a"],
    "import": ["--gpt2", "none", "--out", "none"],
    "levanter export": ["--checkpoint", "none", "--config", "none", "--out", "none"],
    "levanter import": ["--run", "none", "--config", "none", "--out", "none"],
    "report": ["--run", "none"],
    "train": ["--out", "none"],
}
"""Options that have no default."""


def options_with_paths():
    for name in NAMES:
        kinds = typing.get_type_hints(importlib.import_module(module_of(name)).Options)
        paths = [field for field, kind in kinds.items() if Path in (kind, *typing.get_args(kind))]
        yield from ((name, field) for field in paths)
    yield from (("train", "config"), ("experiment run", "plan"))  # which are read on their own


@pytest.mark.parametrize(("name", "field"), sorted({*options_with_paths()}))
def test_every_path_is_of_a_user_that_there_is(name, field, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    option = [] if name == "experiment pack" else [f"--{field.replace('_', '-')}"]
    needed = NEEDED.get(name, []) + (["--at", "1"] if field == "branch_from" else [])
    assert main([*name.split(), *needed, *option, "~nosuchuser/x.yaml"]) == 2
    assert "~nosuchuser/x.yaml cannot be found" in capsys.readouterr().err
    assert main([*name.split(), *needed, *option, ""]) == 2
    assert "A path is empty" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_that_says_what_it_does(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert f"usage: qkvflow {name} " in printed
    assert importlib.import_module(module_of(name)).__doc__.splitlines()[0] in printed


def printed_help(capsys, monkeypatch, *words):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as stop:
        main([*words])
    assert stop.value.code == 0
    return capsys.readouterr().out


def options_in(text):
    return {*re.findall(r"^\W*(--[a-z][\w.-]*)", text, re.MULTILINE)}


@pytest.mark.parametrize("name", ["train", "finetune"])
def test_a_long_help_shows_what_is_needed_often_and_all_if_it_is_asked_for(name, capsys, monkeypatch):
    short = printed_help(capsys, monkeypatch, name, "--help")
    whole = printed_help(capsys, monkeypatch, name, "--help-all")
    assert "--help-all shows all" in short and "--help-all shows all" not in whole
    often = importlib.import_module(module_of(name)).OFTEN
    fields = {field.replace("_", "-") for cls in often for field in often[cls]}
    shown = {option.rpartition(".")[2].strip("-") for option in options_in(short)}
    assert shown == fields - {"run", "optimizer", "architecture"} | {"out"} and len(shown) <= 17
    assert options_in(short) < options_in(whole)
    assert {"--optimizer.clip", "--keep"} <= options_in(whole) - options_in(short)
    assert "vocab-size" not in whole, "it is always refused"

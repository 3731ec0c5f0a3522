"""The model card of an export: a README.md with a head in YAML, as model hubs show it.

It says what is known: what the model is, the text and the loss of the run that it is from, its depth.
The licence of the weights is nobody's to guess, and is left to be filled in.
"""

import json
import os
from pathlib import Path

from qkvflow import __version__
from qkvflow.config import RunConfig
from qkvflow.files import expanded
from qkvflow.models import LanguageModel, count_parameters
from qkvflow.train import read_metrics
from qkvflow.train.metrics import Record
from qkvflow.train.resume import find_run
from qkvflow.train.run_files import find_models

_HEAD = """---
license: unknown  # to be filled in: the licence of the weights, such as mit or apache-2.0
library_name: {library}
pipeline_tag: text-generation
tags:
- qkvflow
---
"""
_USES = {
    "transformers": """from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({name})
model = AutoModelForCausalLM.from_pretrained({name})""",
    "qkvflow": """import qkvflow

model = qkvflow.load({name})""",
}


def model_card(
    exported: LanguageModel,
    source: LanguageModel,
    checkpoint: str | os.PathLike[str],
    name: str,
    library: str = "qkvflow",
) -> str:
    """The text of the card.

    Args:
        source: the model that was exported, as it is in the checkpoint.
        checkpoint: from where it was read, and what is known of its training.
        name: of the directory that the card is for.
        library: with which it can be loaded, qkvflow or transformers.
    """
    run, loss = find_run(checkpoint), recorded_loss(expanded(checkpoint))
    rows = _about_model(exported, source) + _about_run(run, loss, source)
    table = ["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)]
    layers, size = exported.config.num_layers, count_parameters(exported).total
    use = _USES[library].replace("{name}", json.dumps(name))
    sections = [
        f"# {_cell(name)}",
        f"A language model of {layers} layers and {size:,} parameters, written by qkvflow "
        f"{__version__} (language models whose weights are functions of depth).",
        "\n".join(table),
        f"```python\n{use}\n```",
        "To be filled in: the licence above, what the model is for, and what it must not be used for.",
    ]
    return _HEAD.format(library=library) + "\n" + "\n\n".join(sections) + "\n"


def _about_model(exported: LanguageModel, source: LanguageModel) -> list[tuple[str, str]]:
    config, own = exported.config, source.config
    named = source.preset.name if source.preset is not None else "without a name"
    depth = f"{config.num_layers} layers"
    if config.num_layers != own.num_layers:
        depth += f", sampled from a model of {own.num_layers}"
    heads = f"{config.num_heads} ({config.KVHeads.size} of keys and values)"
    return [
        ("model", f"{named}: weights {own.weights}, integrator {own.integrator}"),
        ("depth", depth),
        ("layer", f"{', '.join(part.name for part in config.parts or ())}; flavour {config.flavour}"),
        ("width, heads", f"{config.hidden_dim}, {heads}"),
        ("longest sequence", f"{config.max_position_embeddings} tokens"),
        ("vocabulary", f"{config.vocab_size:,} tokens"),
    ]


def _about_run(
    run: RunConfig | None, loss: Record | None, source: LanguageModel
) -> list[tuple[str, str]]:
    if run is None:
        return [("training", "not recorded: the model was imported, or exported before")]
    tokens = run.steps * run.batch_size * run.length
    text = f"{run.data}, {run.steps:,} steps of {run.batch_size} x {run.length} tokens ({tokens:,})"
    rows = [("data", _cell(text))]
    if run.start is not None:
        rows += [("begun with", _cell(run.start.checkpoint))]
    if loss is None or loss["loss"] is None:
        return [*rows, ("loss", "not recorded")]
    part = "whole valid split" if loss.get("whole") else "part of the valid split"
    depth = f"at its own depth of {source.config.num_layers} layers"
    return [*rows, ("loss", f"{loss['loss']:.4f} nats per token on the {part}, {depth}{_bits(loss)}")]


def _bits(loss: Record) -> str:
    bits = loss.get("bits_per_byte")
    return "" if bits is None else f" ({bits:.4f} bits per byte)"


def _cell(text: str) -> str:
    """A text as a cell of a table, which a path could break out of."""
    kept = text.encode("utf-8", "backslashreplace").decode()
    return " ".join(kept.replace("|", "\\|").replace("<", "&lt;").split())


def recorded_loss(path: Path) -> Record | None:
    """The evaluation of a model that its run recorded: the last one that is not after it."""
    directory = find_models(path)[0].resolve()
    seed = directory.name.removeprefix("seed-") if directory.name.startswith("seed-") else None
    place = directory if seed is None else directory.parent
    is_final, is_step = place.name == "final", place.parent.name == "checkpoints"
    if not (is_final or is_step):
        return None
    records = read_metrics((place.parent if is_final else place.parent.parent) / "metrics.jsonl")
    last = None if is_final else int(place.name.removeprefix("step-"))
    kinds = ("final",) if is_final else ("valid",)
    known = [
        record
        for record in records
        if record["kind"] in kinds
        and (last is None or record["step"] <= last)
        and (seed is None or str(record.get("seed")) == seed)
    ]
    return known[-1] if known else None

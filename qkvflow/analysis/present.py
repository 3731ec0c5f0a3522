"""Analyses, their files, figures and page: what `qkvflow analyze` does, from Python."""

from collections.abc import Sequence
from pathlib import Path

from qkvflow.analysis.study import ANALYSES, Study, Subject
from qkvflow.analysis.tokens import STYLE
from qkvflow.config import ConfigError
from qkvflow.data import Tokenizer
from qkvflow.files import file_errors, write_text
from qkvflow.models import LanguageModel, count_parameters
from qkvflow.progress import elapsed
from qkvflow.report.page import Conclusion, Heading, Item, Paragraph, to_html
from qkvflow.report.table import Table

LIMITS = (
    "This is one trained model: whether another seed of it, or another model, would look alike is not "
    "shown, nor that anything seen here makes it better or worse."
)
"""What no analysis of a single model shows."""


def obstacle(name: str, subject: Subject) -> ConfigError | None:
    """Why an analysis does not apply to a model, if so; nothing is computed."""
    try:
        ANALYSES[name]().check(subject)
    except ConfigError as error:
        return error
    return None


def describe(model: LanguageModel) -> str:
    """A model in a sentence."""
    config = model.config
    name = model.preset.name if model.preset else "a model without a name"
    return (
        f"{name}: {config.weights} weights, "
        f"{' and '.join(map(str, config.parts or ()))} ({config.order}), "
        f"{config.integrator} steps; {config.num_layers} layers, width {config.hidden_dim}, "
        f"{config.num_heads} heads, {count_parameters(model).total:,} parameters."
    )


def present(
    subject: Subject,
    names: Sequence[str],
    out: Path,
    tokenizer: Tokenizer,
    *,
    title: str = "Analysis",
    notes: Sequence[str] = (),
) -> tuple[Path, dict[str, Study]]:
    """Make analyses; OUT has their arrays and numbers, OUT/figures, and OUT/analysis.html.

    The page has them in the order of `names`.
    """
    with file_errors(f"{out} cannot be made", "Choose another directory with --out."):
        out.mkdir(parents=True, exist_ok=True)
    studies: dict[str, Study] = {}
    for name in names:
        with elapsed(f"{name}: compiling and computing"):
            studies[name] = ANALYSES[name]().study(subject)
        studies[name].write(out, name)
    found = [(ANALYSES[name].heading, ANALYSES[name]().found(studies[name])) for name in names]
    told = [("the model", describe(subject.model)), *(line for line in found if line[1])]
    first = told.pop(1 if len(told) > 1 else 0)[1]
    items: list[Item] = [Heading(title, 1), Conclusion(first, LIMITS, tuple(told))]
    items += [Paragraph(note) for note in notes]
    with elapsed("drawing figures"):
        for name, study in studies.items():
            items += _section(name, study, out / "figures", tokenizer)
    page = out / "analysis.html"
    write_text(page, to_html(items, STYLE))
    return page, studies


def _section(name: str, study: Study, figures: Path, tokenizer: Tokenizer) -> list[Item]:
    """An analysis: its numbers and how to read them, its text, its figures."""
    analysis = ANALYSES[name]()
    numbers = Table(("quantity", "value"), tuple(analysis.main_numbers(study)))
    section: list[Item] = [Heading(analysis.heading), *analysis.text(study, tokenizer)]
    section += analysis.draw(study, figures)
    reading = [Paragraph(analysis.reading)] if analysis.reading else []
    return [*section, numbers, *reading]

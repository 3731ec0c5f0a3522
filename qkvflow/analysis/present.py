"""Analyses, their files, figures and page: what `qkvflow analyze` does, from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from qkvflow.analysis.study import ANALYSES, Study, Subject
from qkvflow.analysis.tokens import STYLE
from qkvflow.config import ConfigError
from qkvflow.data import Tokenizer
from qkvflow.files import file_errors, write_text
from qkvflow.models import LanguageModel, count_parameters
from qkvflow.progress import elapsed
from qkvflow.report.page import Heading, Paragraph, element, frame
from qkvflow.report.table import Table


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
    parts = [element(Heading(title, 1)), element(Paragraph(describe(subject.model)))]
    parts += [element(Paragraph(note)) for note in notes]
    with elapsed("drawing figures"):
        parts += _body(studies, out / "figures", tokenizer)
    page = out / "analysis.html"
    write_text(page, frame(title, "\n".join(parts), STYLE))
    return page, studies


def _body(studies: Mapping[str, Study], figures: Path, tokenizer: Tokenizer) -> list[str]:
    """The main numbers of all analyses, then a section of each."""
    lines, sections = [], []
    for name, study in studies.items():
        analysis = ANALYSES[name]()
        lines += analysis.main_numbers(study)
        sections.append(element(Heading(analysis.heading)))
        sections += analysis.text(study, tokenizer)
        sections += [element(picture) for picture in analysis.draw(study, figures)]
    return [element(Table(("", ""), tuple(lines))), *sections]

"""One self-contained page of an analysis: tokens coloured by sensitivity, figures, how to read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qkvflow.analysis.studies import Study
from qkvflow.analysis.summary import CIRCUITS, change_in_words, main_numbers
from qkvflow.analysis.tokens import STYLE, lens_table, sensitivity_strip, strip
from qkvflow.report.page import Heading, Item, Paragraph, Picture, element, frame
from qkvflow.report.table import Table

HEADINGS = {
    "lyapunov": "Lyapunov exponents and sensitivity",
    "trajectory": "The way over depth",
    "spectra": "Spectra of the weights",
    "modulation": "Modulation over depth",
}


@dataclass(frozen=True)
class Contents:
    """What the page shows."""

    title: str
    about: str
    """The model in a sentence."""
    studies: Mapping[str, Study]
    figures: Mapping[str, Sequence[Picture]]
    notes: Sequence[str] = ()
    """What was left out or deserves to be known."""
    vocabulary: Mapping[int, str] = field(default_factory=dict)
    """The text of the token ids that the model would predict."""


def write_page(contents: Contents, path: Path) -> None:
    """Write the page; it needs no other file and no network."""
    parts = [element(Heading(contents.title, 1)), element(Paragraph(contents.about))]
    parts += [element(Paragraph(note)) for note in contents.notes]
    lines = tuple(line for name in _order(contents) for line in main_numbers(contents.studies[name]))
    parts.append(element(Table(("", ""), lines)))
    for name in _order(contents):
        parts.append(element(Heading(HEADINGS[name])))
        parts += _section(contents, name)
    path.write_text(frame(contents.title, "\n".join(parts), STYLE), encoding="utf-8")


def _order(contents: Contents) -> list[str]:
    return [name for name in HEADINGS if name in contents.studies]


def _section(contents: Contents, name: str) -> list[str]:
    study = contents.studies[name]
    special = {"lyapunov": _tokens, "trajectory": _predictions, "spectra": _trends}
    parts = special[name](contents, study) if name in special else []
    pictures: Sequence[Item] = contents.figures[name]
    return [*parts, *map(element, pictures)]


def _tokens(contents: Contents, study: Study) -> list[str]:
    """The text, coloured by sensitivity and by exponents."""
    several = len(study.arrays["rows"]) > 1
    how = (
        "Point at a token, or choose it with the Tab key, to see what that output position depends on; "
        "a click keeps it."
        if several
        else "The text is long, so that this was computed for one output position."
    )
    reading = (
        "The colour of a token says how much the framed position of the last state changes with that "
        "token's embedding: the root of its share of the largest other token. Tokens in grey come "
        f"later and have no influence at all. {how}"
    )
    exponents = (
        "The same text by the largest Lyapunov exponent of each token: orange grows over depth, blue "
        "shrinks, the stronger the colour, the faster."
    )
    return [
        element(Paragraph(reading)),
        sensitivity_strip(study),
        element(Paragraph(exponents)),
        strip(study.numbers["tokens"], study.arrays["token_exponents"], "exponent"),
    ]


def _predictions(contents: Contents, study: Study) -> list[str]:
    reading = (
        "What the model would say next at each depth, below the token it has just read; darker is more "
        "certain, and a frame marks the depth from which on the choice stays. The last row of a column "
        "is its first guess, from the embedding alone."
    )
    return [element(Paragraph(reading)), lens_table(study, contents.vocabulary)]


def _trends(contents: Contents, study: Study) -> list[str]:
    head = ("circuit", "heads", "mean |eigenvalue|", "over depth", "spectral norm", "numerical radius")
    rows = tuple(
        (
            CIRCUITS[name],
            str(numbers["heads"]),
            f"{numbers['magnitude']['mean']:.3g}",
            change_in_words(numbers["magnitude"]),
            f"{numbers['spectral_norm']['mean']:.3g}",
            f"{numbers['numerical_radius']['mean']:.3g}",
        )
        for name, numbers in study.numbers["circuits"].items()
    )
    reading = (
        "Circuits are the products of a layer's matrices, W_q W_k^T / sqrt(D) and W_v W_o of every "
        "head and the feed-forward map, with the gain of the norm before them folded in. Neighbouring "
        "depths are not independent: take the p-value of the rank correlation as an aid."
    )
    return [element(Table(head, rows)), element(Paragraph(reading))]

"""Tokens as HTML: strips coloured by a number, the interactive one of the sensitivity, the lens."""

import html
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qkvflow.analysis.study import Study
from qkvflow.data import Tokenizer

WARM, COOL, CALM = "213, 94, 0", "0, 114, 178", "0, 158, 115"
STRONGEST = 0.85
"""Opacity of the strongest colour: the token stays legible."""
PALEST = 0.06
COLUMNS = 80
"""Tokens that the table of predictions shows."""

STYLE, _SCRIPT = (Path(__file__).with_suffix(of).read_text() for of in (".css", ".js"))
"""Of the page; they lie beside this file."""


def shown(label: str) -> str:
    """A token so that it can be seen: spaces and line ends have signs of their own."""
    return label.replace(" ", "\u2423").replace("\n", "\u23ce").replace("\t", "\u21e5")


def _span(label: str, colour: str, opacity: float, title: str, more: str = "") -> str:
    text, style = html.escape(shown(label)), f"background: rgba({colour}, {opacity:.3f})"
    # A line of text ends where the text does; elsewhere it may be broken behind a space.
    end = "<br>" if label.endswith("\n") else "<wbr>" if label.endswith(" ") else ""
    return f'<span style="{style}" title="{html.escape(title)}"{more}>{text}</span>{end}'


def strip(labels: Sequence[str], values: np.ndarray, name: str) -> str:
    """Tokens coloured by a number of theirs: warm above zero, cool below."""
    sizes = np.abs(values)
    # Of one sign, the colours span the range; else they begin at zero.
    least = float(sizes.min()) if np.all(values > 0) or np.all(values < 0) else 0.0
    span = float(sizes.max()) - least or 1.0
    spans = (
        _span(
            label,
            WARM if value > 0 else COOL,
            PALEST + (STRONGEST - PALEST) * (abs(value) - least) / span,
            f"position {i}: {name} {value:+.3f}",
        )
        for i, (label, value) in enumerate(zip(labels, values.tolist()))
    )
    said = f"From {values.min():+.3f} to {values.max():+.3f}."
    return f'<div class="tokens">{"".join(spans)}</div>\n<p class="said">{said}</p>'


def sensitivity_strip(study: Study) -> str:
    """The text coloured by the sensitivity of an output position, which can be changed."""
    labels, position = study.numbers["tokens"], study.numbers["position"]
    rows, table = study.arrays["rows"].tolist(), study.arrays["sensitivity"]
    data = {
        "rows": rows,
        "opacities": [[f"{o:.3f}" for o in opacities(row, i)] for i, row in zip(rows, table)],
        "values": [[f"{value:.3g}" for value in row] for row in table],
        "words": [said(row, labels, i) for i, row in zip(rows, table)],
        "position": position,
        "warm": WARM,
    }
    row = table[rows.index(position)]
    words = html.escape(said(row, labels, position))
    spans = [
        _span(label, WARM, opacity, f"position {i}: {value:.3g}", _attributes(i, position, rows))
        for i, (label, opacity, value) in enumerate(zip(labels, opacities(row, position), row))
    ]
    content = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return "\n".join(
        [
            f'<div class="tokens" id="tokens">{"".join(spans)}</div>',
            f'<p class="said" id="said" aria-live="polite">{words}</p>',
            f'<script type="application/json" id="data">{content}</script>',
            f"<script>{_SCRIPT}</script>",
        ]
    )


def _attributes(i: int, position: int, rows: Sequence[int]) -> str:
    kind = "chosen" if i == position else "later" if i > position else ""
    focus = ' tabindex="0"' if len(rows) > 1 else ""
    return f' class="{kind}"{focus}' if kind else focus


def opacities(values: np.ndarray, position: int) -> list[float]:
    """The colours of a row: the root of each value's share of the largest other one."""
    others = np.delete(values, position)
    largest = float(others.max(initial=0.0)) or float(values[position]) or 1.0
    return (STRONGEST * np.sqrt(np.minimum(values / largest, 1.0))).tolist()


def said(values: np.ndarray, labels: Sequence[str], position: int) -> str:
    """The row in words."""
    others = [j for j in np.argsort(-values, kind="stable").tolist() if j < position][:3]
    text = f"Position {position} \u201c{shown(labels[position])}\u201d: itself {values[position]:.3g}"
    listed = ", ".join(f"\u201c{shown(labels[j])}\u201d ({j}) {values[j]:.3g}" for j in others)
    return f"{text}; then {listed}." if listed else f"{text}."


def lens_table(study: Study, tokenizer: Tokenizer) -> str:
    """The likeliest next token at every depth, the last depth on top."""
    labels, depths = study.numbers["tokens"][:COLUMNS], study.arrays["depths"]
    head = "".join(f"<th>{html.escape(shown(label))}</th>" for label in labels)
    rows = []
    for d in reversed(range(len(depths))):
        cells = "".join(_guess(study, tokenizer, d, i) for i in range(len(labels)))
        rows.append(f"<tr><th>t = {depths[d]:.2f}</th>{cells}</tr>")
    body = "\n".join(rows)
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
    left = len(study.numbers["tokens"]) - len(labels)
    more = f'<p class="said">{left} more tokens are in trajectory.npz.</p>' if left else ""
    return f'<div class="lens">{table}</div>{more}'


def _guess(study: Study, tokenizer: Tokenizer, d: int, i: int) -> str:
    choice, probability = int(study.arrays["choice"][d, i]), float(study.arrays["probability"][d, i])
    settles = study.arrays["settled"][i] == study.arrays["depths"][d]
    text = html.escape(shown(tokenizer.decode([choice])))
    style = f"background: rgba({CALM}, {STRONGEST * probability:.3f})"
    kind = ' class="settles"' if settles else ""
    return f'<td{kind} style="{style}" title="{probability:.0%}">{text}</td>'

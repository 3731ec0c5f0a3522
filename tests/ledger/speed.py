"""What the tables of docs/speed.md say."""

from qkvflow.files import read_json
from tests.ledger.measured import (
    RESULTS,
    Sentence,
    nothing,
)


def speed_rows() -> list[Sentence]:
    """The tables of docs/speed.md."""
    record = read_json(RESULTS / "bench.json")
    rows = [f"answers in {record['once']['help_seconds']:.2f} s"]
    for contest in record["contests"].values():
        for finding in contest["findings"]:
            if finding["at_most"] is not None:
                low, high = finding["quartiles"]
                rows.append(
                    f"| {contest['title']} | `{finding['name']}` / {finding['against']} | "
                    f"{finding['at_most']:.2f} | {finding['ratio']:.2f} ({low:.2f} to {high:.2f}) |"
                )
    for name, seconds in record["once"]["compile_seconds"].items():
        streams = {depth: of["streams"] for depth, of in record["once"]["memory"][name]["full"].items()}
        a_layer = (streams["48"] - streams["12"]) / 36
        rows.append(f"| `{name}` | {seconds['6']:.1f} s | {seconds['48']:.1f} s | {a_layer:.2f} |")
    for axis, models in record["growth"].items():
        exponents = " | ".join(f"n^{growth['exponent']:.2f}" for growth in models.values())
        values = next(iter(models.values()))["values"]
        rows.append(f"| {axis}, {values[0]} to {values[-1]} | {exponents} |")
    shares = read_json(RESULTS / "step_parts.json")
    rows += [
        f" | {share:.2f} | {shares['large'][part]:.2f} |" for part, share in shares["small"].items()
    ]
    return [(row, nothing) for row in rows]

"""Studies, their files, figures and page: what `qkvflow analyze` does, from Python."""

from collections.abc import Callable, Sequence
from pathlib import Path

from qkvflow.analysis.circuits import check_circuits
from qkvflow.analysis.modulation import modulators
from qkvflow.analysis.page import Contents, write_page
from qkvflow.analysis.state_figures import draw_lyapunov, draw_trajectory
from qkvflow.analysis.studies import STUDIES, Study, Subject
from qkvflow.analysis.weight_figures import draw_modulation, draw_spectra
from qkvflow.config import ConfigError
from qkvflow.data import Tokenizer
from qkvflow.files import FileError
from qkvflow.models import LanguageModel, count_parameters
from qkvflow.report.page import Picture

DRAW: dict[str, Callable[[Study, Path], list[Picture]]] = {
    "spectra": draw_spectra,
    "lyapunov": draw_lyapunov,
    "trajectory": draw_trajectory,
    "modulation": draw_modulation,
}


def obstacle(kind: str, subject: Subject) -> ConfigError | None:
    """Why a study does not apply to a model, if so; nothing is computed."""
    checks: dict[str, Callable[[], object]] = {
        "spectra": lambda: check_circuits(subject.model, subject.circuits),
        "modulation": lambda: modulators(subject.model, subject.times[:1]),
        "lyapunov": subject.model.plan,
        "trajectory": subject.model.plan,
    }
    try:
        checks[kind]()
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


def make_directory(path: Path) -> Path:
    """The directory of an analysis, made if need be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{path} cannot be made: {error.strerror or error}. Choose another directory with --out."
        ) from error
    return path


def present(
    subject: Subject,
    kinds: Sequence[str],
    out: Path,
    tokenizer: Tokenizer,
    *,
    title: str = "Analysis",
    notes: Sequence[str] = (),
) -> tuple[Path, dict[str, Study]]:
    """Make studies; OUT has their arrays and numbers, OUT/figures, and OUT/analysis.html."""
    make_directory(out)
    studies, figures = {}, {}
    for kind in kinds:
        studies[kind] = STUDIES[kind](subject)
        studies[kind].write(out)
        figures[kind] = DRAW[kind](studies[kind], out / "figures")
    page = out / "analysis.html"
    contents = Contents(
        title, describe(subject.model), studies, figures, notes, _vocabulary(studies, tokenizer)
    )
    write_page(contents, page)
    return page, studies


def _vocabulary(studies: dict[str, Study], tokenizer: Tokenizer) -> dict[int, str]:
    """The text of every token that is predicted at some depth."""
    if "trajectory" not in studies:
        return {}
    chosen = {int(i) for i in studies["trajectory"].arrays["choice"].ravel()}
    return {i: tokenizer.decode([i]) for i in chosen}

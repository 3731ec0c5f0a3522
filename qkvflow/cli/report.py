"""Write a report on one run: loss curve, evaluations, settings, costs, sample text, n-grams.

    qkvflow report --run runs/first
    qkvflow report --run runs/first --prompt "def " --out pages/first

RUN/report.html is self-contained and needs no network; RUN/report.md has the same content. The run need
not be finished. The n-gram baselines are fitted once and stored with the run. For experiments, which
compare runs, use qkvflow experiment report.
"""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.config import ConfigError
from qkvflow.config.strict import Count, NotNegativeInt, bound_problems
from qkvflow.experiments.run_page import Sample, write_run_page
from qkvflow.generate import choice_problems


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow report`."""

    run: Path
    """Directory of the run: the --out of qkvflow train."""
    prompt: str = Sample.prompt
    """Prompt for the sample text in the report."""
    tokens: Count = Sample.tokens
    """Number of tokens to generate after the prompt."""
    temperature: float = Sample.temperature
    """Sampling temperature: 0 always takes the most likely token, 1 samples from the model as it is."""
    seed: NotNegativeInt = Sample.seed
    """Sampling seed."""
    ngrams: bool = True
    """Whether to fit n-gram baselines of order 1 to 6; the text of the run must be available."""
    out: Path | None = None
    """Directory for the report; None: the directory of the run."""


def run(options: Options) -> None:
    """Write the page in both formats."""
    problems = bound_problems(options) + choice_problems(options.temperature, None, None)
    if problems:
        raise ConfigError("The report cannot be written:", problems)
    sample = Sample(options.prompt, options.tokens, options.temperature, options.seed)
    page, text = write_run_page(options.run, sample, ngrams=options.ngrams, out=options.out)
    print(f"Written: {page} and {text}")

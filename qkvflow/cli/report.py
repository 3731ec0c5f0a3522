"""Write a page on one run: its curve, evaluations, settings, costs, a sample of text, n-grams.

    qkvflow report --run runs/first
    qkvflow report --run runs/first --prompt "def " --out pages/first

RUN/report.html needs no other file and no network; RUN/report.md says the same. The run need not be
finished. The n-grams of its text are fitted once and kept beside it. Experiments, which compare runs,
have a page of their own: qkvflow experiment report.
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
    """Directory of the run, the --out of a qkvflow train."""
    prompt: str = Sample.prompt
    """Text that the model continues on the page."""
    tokens: Count = Sample.tokens
    """Number of tokens that the model adds to the prompt."""
    temperature: float = Sample.temperature
    """Sampling temperature: 0 takes the likeliest token, 1 samples as the model says."""
    seed: NotNegativeInt = Sample.seed
    """Sampling seed."""
    ngrams: bool = True
    """Whether to fit n-grams of order 1 to 6 on the text of the run, which has to be at hand."""
    out: Path | None = None
    """Directory for the page; None: that of the run."""


def run(options: Options) -> None:
    """Write the page in both formats."""
    problems = bound_problems(options) + choice_problems(options.temperature, None, None)
    if problems:
        raise ConfigError("The page cannot be written:", problems)
    sample = Sample(options.prompt, options.tokens, options.temperature, options.seed)
    page, text = write_run_page(options.run, sample, ngrams=options.ngrams, out=options.out)
    print(f"Written: {page} and {text}")

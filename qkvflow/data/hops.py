"""Questions that p hops of induction answer (Sanford et al. 2024, arXiv:2402.09268, section 4).

A hop goes from a symbol to its previous occurrence, and from there to what follows it. A problem is a
text in small letters and questions about it: `C>>=D` begins with c at the end of the text and hops
twice. After a line break or two the next problem begins:

    cbadacabcdbabcad
    A>=D
    B>>=A

Symbols: A the alphabet's size, N the length of a text, p the number of hops.

Neighbours in a text differ, so that every hop goes back. Questions with an answer that is their own
first symbol are left out. What is left does not change if the other A - 1 symbols change places: to
who sees the question only, each of them is as likely, whatever p is. Unlike there, p is part of the
question, in as many marks, and differs from question to question.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qkvflow.config.strict import shown
from qkvflow.data.answers import Questions
from qkvflow.data.corpora import CORPORA, Reading, read_options
from qkvflow.data.corpus import Corpus
from qkvflow.data.problems import Draws, Problems, below, corpus_of


@dataclass(frozen=True)
class Hops(Problems):
    """Texts with questions of up to so many hops.

    Examples:
        >>> Hops(symbols=5).asked.guess["2"]
        0.25
    """

    name: ClassVar[str] = "hops"

    symbols: int = 4
    """A: size of the alphabet, 3 to 26."""
    length: int = 32
    """N: symbols of a text."""
    hops: int = 3
    """Most hops of a question in train."""
    test_hops: int = 6
    """Most hops of a question in valid and test."""
    questions: int = 4
    """About each text, no two of them the same."""
    problems: int = 20_000
    """Texts in train; valid and test have a tenth of it each."""
    seed: int = 0

    def __post_init__(self) -> None:
        self.check(
            (3 <= self.symbols <= 26, f"symbols is {shown(self.symbols)}, expected 3 to 26"),
            (2 <= self.length <= 1000, f"length is {shown(self.length)}, expected 2 to 1,000"),
            (1 <= self.hops <= 100, f"hops is {shown(self.hops)}, expected 1 to 100"),
            (1 <= self.test_hops <= 100, f"test_hops is {shown(self.test_hops)}, expected 1 to 100"),
            (1 <= self.questions <= 100, f"questions is {shown(self.questions)}, expected 1 to 100"),
        )

    def counts(self, split: str, draws: Draws) -> list[int]:
        most = self.hops if split == "train" else self.test_hops
        return [1 + below(draws, most) for _ in range(self.questions)]

    def draw(self, draws: Draws, counts: Sequence[int]) -> tuple[str, str] | None:
        text, lines = self._text(draws), list[str]()
        for hops in counts:
            asked = [
                f"{start.upper()}{'>' * hops}={answer.upper()}"
                for start in string.ascii_lowercase[: self.symbols]
                if (answer := follow(text, start, hops)) not in (None, start)
            ]
            new = [line for line in asked if line not in lines]
            if not new:
                return None
            lines.append(new[below(draws, len(new))])
        return text, "\n".join([text, *lines, ""])

    def _text(self, draws: Draws) -> str:
        """Symbols drawn by chance, each other than the one before it."""
        place, text = below(draws, self.symbols), list[str]()
        for _ in range(self.length):
            text.append(string.ascii_lowercase[place])
            place = (place + 1 + below(draws, self.symbols - 1)) % self.symbols
        return "".join(text)

    @property
    def asked(self) -> Questions:
        most = max(self.hops, self.test_hops)
        guess = {str(hops): 1 / (self.symbols - 1) for hops in range(1, most + 1)}
        width = self.length + 1 + self.questions * (most + len("C=D\n"))
        return Questions("hops", ">", 0, width, guess)


def follow(text: str, symbol: str, hops: int) -> str | None:
    """Where so many hops from a symbol behind a text end; None where they leave it.

    Examples:
        >>> follow("abcacb", "a", 1), follow("abcacb", "a", 2), follow("abcacb", "a", 3)
        ('c', 'a', 'b')
    """
    before = len(text) - 1  # nothing follows the last symbol
    for _ in range(hops):
        before = text.rfind(symbol, 0, before)
        if before < 0:
            return None
        symbol = text[before + 1]
    return symbol


@CORPORA.register("hops")
def hops_corpus(options: str, reading: Reading) -> Corpus:
    """The corpus of `Hops`; `options` is like `hops=2,test_hops=4`."""
    return corpus_of(read_options("hops", options, Hops))

"""Sums of several numbers: `12+345+6=3630`, the digits of the sum from the last to the first.

So written, each digit of the sum follows from digits and a carry that are there already (Lee et al.
2023, arXiv:2307.03381). A sum has as many digits as the largest of so many operands, zeros at its end,
so that its length says nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qkvflow.config.strict import shown
from qkvflow.data.answers import Questions
from qkvflow.data.corpora import CORPORA, Reading, read_options
from qkvflow.data.corpus import Corpus
from qkvflow.data.problems import Draws, Problems, below, corpus_of


@dataclass(frozen=True)
class Addition(Problems):
    """Sums of two operands or more, each any number of up to so many digits, equally often.

    Examples:
        >>> Addition(digits=1).written([7, 5])
        '7+5=21'
    """

    name: ClassVar[str] = "addition"

    operands: int = 3
    """Most operands of a sum in train; the fewest are 2."""
    test_operands: int = 4
    """Most operands of a sum in valid and test."""
    digits: int = 3
    """Most digits of an operand."""
    problems: int = 20_000
    """Sums in train; valid and test have a tenth of it each."""
    seed: int = 0

    def __post_init__(self) -> None:
        most = self.test_operands
        self.check(
            (2 <= self.operands <= 20, f"operands is {shown(self.operands)}, expected 2 to 20"),
            (2 <= most <= 20, f"test_operands is {shown(most)}, expected 2 to 20"),
            (1 <= self.digits <= 4, f"digits is {shown(self.digits)}, expected 1 to 4"),
        )

    def counts(self, split: str, draws: Draws) -> list[int]:
        most = self.operands if split == "train" else self.test_operands
        return [2 + below(draws, most - 1)]

    def draw(self, draws: Draws, counts: Sequence[int]) -> tuple[str, str] | None:
        operands = [below(draws, 10**self.digits) for _ in range(counts[0])]
        return str(sorted(operands)), self.written(operands) + "\n"

    def written(self, operands: Sequence[int]) -> str:
        """A sum and its answer."""
        answer = f"{sum(operands):0{self._answer_digits(len(operands))}}"[::-1]
        return f"{'+'.join(map(str, operands))}={answer}"

    def _answer_digits(self, operands: int) -> int:
        return len(str(operands * (10**self.digits - 1)))

    @property
    def asked(self) -> Questions:
        most = max(self.operands, self.test_operands)
        guess = {str(n): self.guess(n) for n in range(2, most + 1)}
        width = most * (self.digits + 1) + self._answer_digits(most) + len("\n")
        return Questions("operands", "+", 1, width, guess)

    def guess(self, operands: int) -> float:
        """The probability of the likeliest sum s of n operands below M, which lies in the middle.

        It is M^-n sum_k (-1)^k C(n, k) C(s - k M + n - 1, n - 1), over k with k M <= s.
        """
        n, m = operands, 10**self.digits
        s = n * (m - 1) // 2
        ways = (
            (-1) ** k * math.comb(n, k) * math.comb(s - k * m + n - 1, n - 1) for k in range(s // m + 1)
        )
        return sum(ways) / m**n


@CORPORA.register("addition")
def addition_corpus(options: str, reading: Reading) -> Corpus:
    """The corpus of `Addition`; `options` is like `operands=2,test_operands=3,digits=3`."""
    return corpus_of(read_options("addition", options, Addition))

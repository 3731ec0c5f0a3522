"""Answers of a text of questions: where they are among its tokens, and how many of them are right.

A question is a line, such as `C>>=D` or `12+34=640`. Its answer is what stands between `=` and the end
of the line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qkvflow.data.tokenizer import Ids, Tokenizer

Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Questions:
    """What a corpus says of the questions in it."""

    counted: str
    """What makes a question long: hops, operands."""
    mark: str
    """Character that counts it: the marks before `=`, and `least`."""
    least: int
    """The count of a question without a mark."""
    width: int
    """Characters of every problem, which may have several questions."""
    guess: Mapping[str, float] = field(default_factory=dict)
    """By count: the share of answers that the best guess gets right which sees the question alone."""


@dataclass(frozen=True)
class Accuracy:
    """How many answers are right, if after each token the likeliest one is taken as the next."""

    whole: float
    """Share of answers of which every token is right."""
    tokens: float
    """Share of their tokens that are right."""
    answers: int
    """How many were judged."""
    counted: str
    """What questions are counted by: hops, operands."""
    by_count: Mapping[str, float]
    """Share of answers that are right, by that."""
    guess: Mapping[str, float]
    """By the same, what the best guess gets right that sees the question alone."""


@dataclass(frozen=True)
class Answers:
    """Every answer of a split: tokens [start, stop) and the count of its question."""

    starts: Places
    stops: Places
    counts: Places
    questions: Questions

    def mask(self, size: int) -> Flags:
        """Of so many tokens, those of answers."""
        steps = np.zeros(size + 1, np.int8)
        np.add.at(steps, self.starts, 1)
        np.add.at(steps, self.stops, -1)
        return np.cumsum(steps[:size], dtype=np.int8) > 0

    def judge(self, right: Flags, seen: Flags, length: int) -> Accuracy | None:
        """The accuracy, by which tokens are right of those that were seen in windows of `length`.

        Answers are judged whose whole problem is in the window that predicts them; None: of none it is.
        """
        sizes = self.stops - self.starts
        window = (self.stops - 2) // length * length
        whole = window <= self.starts // self.questions.width * self.questions.width
        judged = whole & (self._sums(seen) == sizes)
        if not judged.any():
            return None
        hits, sizes, counts = self._sums(right)[judged], sizes[judged], self.counts[judged]
        is_right = hits == sizes
        shares = {str(n): float(is_right[counts == n].mean()) for n in np.unique(counts)}
        return Accuracy(
            float(is_right.mean()),
            float(hits.sum() / sizes.sum()),
            len(sizes),
            self.questions.counted,
            shares,
            {n: self.questions.guess[n] for n in shares},
        )

    def _sums(self, flags: Flags) -> Places:
        total = np.concatenate([[0], np.cumsum(flags)])
        return np.asarray(total[self.stops] - total[self.starts], np.int64)


def find_answers(ids: Ids, tokenizer: Tokenizer, questions: Questions) -> Answers:
    r"""The answers of a text, by its ids; each token is one character.

    Examples:
        >>> from qkvflow.data import ByteTokenizer, Questions
        >>> found = find_answers(
        ...     ByteTokenizer().encode("1+2=3\n"), ByteTokenizer(), Questions("operands", "+", 1, 6)
        ... )
        >>> found.starts.tolist(), found.stops.tolist(), found.counts.tolist()
        ([4], [5], [2])
    """
    ids = np.asarray(ids)
    is_equal, is_end, is_mark = (ids == tokenizer.encode(c)[0] for c in ("=", "\n", questions.mark))
    ends = np.append(np.flatnonzero(is_end), len(ids))
    starts = np.flatnonzero(is_equal) + 1
    line = np.searchsorted(ends, starts)
    begins = np.where(line > 0, ends[line - 1] + 1, 0)
    marks = np.concatenate([[0], np.cumsum(is_mark)])
    counts = marks[starts] - marks[begins] + questions.least
    return Answers(starts, ends[line], counts, questions)

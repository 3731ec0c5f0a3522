"""hops and addition: every answer is right by another route, and guesses are as good as they say."""

import itertools
import re
from collections import Counter

import numpy as np
import pytest

from qkvflow.data import (
    SPLITS,
    Addition,
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    DataError,
    Hops,
    Questions,
    load_corpus,
    prepare,
)
from qkvflow.data.answers import find_answers
from qkvflow.data.hops import follow
from qkvflow.data.problems import below, corpus_of, numbers

HOPS = "hops:hops=2,test_hops=4,length=20,questions=3,problems=300"
HOPS_BEGIN = ["abcacdbacbcbacabacdabcdadcdbacab", "B>=A", "B>>=D"]
SUMS_BEGIN = ["402+601=3001", "115+326=1440"]
ADDITION = "addition:operands=3,test_operands=5,digits=2,problems=400"


def texts_of(name):
    corpus = load_corpus(name)
    return {split: "".join(corpus.chunks(split)) for split in SPLITS}, corpus.questions


def problems_of(text, width):
    assert len(text) % width == 0 and text.endswith("\n")
    return [text[i : i + width] for i in range(0, len(text), width)]


def hopped(text, symbol, hops):
    """The answer by the definition alone: positions, and the largest one that fits."""
    at = len(text)
    for _ in range(hops):
        fitting = [j for j in range(1, min(at + 1, len(text))) if text[j - 1] == symbol]
        at = max(fitting)
        symbol = text[at]
    return symbol


def test_a_solver_has_every_answer_of_hops_and_no_text_stands_twice():
    texts, questions = texts_of(HOPS)
    known, counts = [], {split: Counter() for split in SPLITS}
    for split, text in texts.items():
        for problem in problems_of(text, questions.width):
            given, *asked = problem.split()
            known.append(given)
            assert len(given) == 20 and len({*asked}) == 3
            assert all(a != b for a, b in itertools.pairwise(given))
            for line in asked:
                start, marks, answer = re.fullmatch(r"([A-D])(>+)=([A-D])", line).groups()
                assert hopped(given, start.lower(), len(marks)) == answer.lower() != start.lower()
                counts[split][len(marks)] += 1
    assert len({*known}) == len(known) == 360
    assert counts["train"].keys() == {1, 2} and counts["test"].keys() == {1, 2, 3, 4}
    assert min(counts["train"].values()) > 0.9 * max(counts["train"].values())


def test_a_guess_at_hops_has_one_of_all_other_symbols_exactly():
    """Over all texts there are, each other symbol is the answer as often; the start never counts."""
    for start, hops in itertools.product("abc", (1, 2, 3)):
        texts = ("".join(letters) for letters in itertools.product("abc", repeat=8))
        apart = (text for text in texts if all(a != b for a, b in itertools.pairwise(text)))
        found = Counter(follow(text, start, hops) for text in apart)
        others = [found[symbol] for symbol in "abc" if symbol != start]
        assert others[0] == others[1] > 0, (start, hops, found)
    assert Hops(symbols=3).asked.guess == dict.fromkeys("123456", 0.5)


def test_hops_leave_the_text_where_there_is_no_earlier_symbol():
    assert follow("abab", "c", 1) is None and follow("ab", "a", 2) is None
    assert follow("abc", "c", 1) is None, "nothing follows the last symbol"


def test_a_solver_has_every_sum_and_none_stands_twice():
    texts, questions = texts_of(ADDITION)
    known, most = [], {}
    for split, text in texts.items():
        for problem in problems_of(text, questions.width):
            terms, answer = problem.strip().split("=")
            operands = [*map(int, terms.split("+"))]
            assert int(answer[::-1]) == sum(operands) and max(operands) < 100
            assert len(answer) == len(str(99 * len(operands)))
            most[split] = max(most.get(split, 0), len(operands))
            known.append(tuple(sorted(operands)))
    assert most == {"train": 3, "valid": 5, "test": 5}
    assert len({*known}) == len(known) == 480


@pytest.mark.parametrize("operands", [2, 3, 4])
def test_the_likeliest_sum_is_that_of_all_sums(operands):
    every = Counter(sum(digits) for digits in itertools.product(range(10), repeat=operands))
    expected = max(every.values()) / 10**operands
    assert Addition(digits=1, problems=10).guess(operands) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("name", [HOPS, ADDITION])
def test_a_corpus_is_the_same_every_time_and_another_with_another_seed(name):
    one, again, other = load_corpus(name), load_corpus(name), load_corpus(f"{name},seed=1")
    assert one.digest == again.digest != other.digest
    more = load_corpus(re.sub("problems=.00", "problems=309", name))
    assert "".join(more.chunks("test"))[:400] == "".join(one.chunks("test"))[:400]


def test_the_default_problems_are_fixed_for_all_time():
    first = {kind: corpus_of(kind(problems=10)) for kind in (Hops, Addition)}
    hops, sums = ("".join(corpus.chunks("train")).split() for corpus in first.values())
    assert hops[:3] == HOPS_BEGIN and sums[:2] == SUMS_BEGIN


def test_draws_are_below_their_bound():
    draws = numbers(0, 3)
    found = Counter(below(draws, 3) for _ in range(9000))
    assert found.keys() == {0, 1, 2} and min(found.values()) > 2800


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hops:hop=2", "hops has no option 'hop'. Did you mean 'hops'"),
        ("hops:symbols=2,length=1,hops=0", "symbols is 2.*length is 1.*hops is 0"),
        ("hops:test_hops=101,questions=0,seed=-1", "test_hops is 101.*questions is 0.*seed is -1"),
        ("hops:problems=9", "problems is 9, expected at least 10"),
        ("hops:problems=10000000000", "problems is 10000000000, expected at most 136,"),
        ("hops:length=4,hops=9", "too few problems"),
        ("addition:operands=1,test_operands=21,digits=5", "operands is 1.*operands is 21.*digits is 5"),
        ("addition:digits=1,operands=2,test_operands=2,problems=60", "too few problems"),
    ],
)
def test_what_cannot_be_asked_is_refused(name, words):
    with pytest.raises(DataError, match=words):
        load_corpus(name)


@pytest.mark.parametrize("name", [HOPS, ADDITION])
def test_answers_are_what_stands_behind_the_sign(name, tmp_path):
    corpus = load_corpus(name)
    tokenizer = CharTokenizer.fit(corpus.chunks("train"))
    for kind in (tokenizer, ByteTokenizer()):
        split = prepare(corpus, kind, tmp_path)["valid"]
        text, found = kind.decode(split.ids), split.answers
        expected = [match.span(1) for match in re.finditer(r"=(.*)\n", text)]
        assert [*zip(found.starts.tolist(), found.stops.tolist())] == expected
        mask = np.zeros(len(text), bool)
        for start, stop in expected:
            mask[start:stop] = True
        np.testing.assert_array_equal(found.mask(len(text)), mask)
        lines = [line for line in text.split("\n") if "=" in line]
        counts = [line.count(">") or 1 + line.count("+") for line in lines]
        assert found.counts.tolist() == counts
    merged = BPETokenizer.fit(corpus.chunks("train"), 300)
    assert prepare(corpus, merged, tmp_path)["valid"].answers is None, "tokens are not characters"
    assert prepare(load_corpus("markov:characters=99"), kind, tmp_path)["valid"].answers is None


def test_an_answer_is_right_where_all_of_its_tokens_are_and_its_problem_is_in_the_window():
    questions = Questions("operands", "+", 1, 8, {"2": 0.5, "3": 0.25})
    ids = ByteTokenizer().encode("1+7=80\n\n1+1+1=3\n9+9=81\n\n")
    found = find_answers(ids, ByteTokenizer(), questions)
    right, seen = np.ones((2, len(ids)), bool)
    perfect = found.judge(right, seen, length=8)
    assert (perfect.whole, perfect.tokens, perfect.answers) == (1.0, 1.0, 3)
    right[5] = False  # the second digit of 80
    part = found.judge(right, seen, length=24)
    assert part.whole == pytest.approx(2 / 3) and part.tokens == pytest.approx(4 / 5)
    assert part.by_count == {"2": 0.5, "3": 1.0} and part.guess == questions.guess
    cut = found.judge(
        right, seen, length=12
    )  # the second problem begins in one window and ends in another
    assert cut.answers == 2 and cut.by_count == {"2": 0.5}
    seen[:8] = False
    assert found.judge(right, seen, length=8).answers == 2
    assert found.judge(right, seen, length=5) is None

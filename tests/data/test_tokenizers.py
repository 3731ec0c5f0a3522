"""Tokenizers: round trips, unknown symbols, JSON."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from qkvflow.data import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    DataError,
    TokenSplit,
    load_corpus,
    make_tokenizer,
    read_tokenizer_files,
    tokenizer_from_dict,
)
from qkvflow.data.text import pieces

TEXT = "the cat sat on the mat, and the dog that sat there saw that cat.\n" * 40
BPE = BPETokenizer.fit([TEXT], vocab_size=300)
ABC = {"a": 0, "b": 1, "c": 2, " ": 3}
ALL = [ByteTokenizer(), CharTokenizer.fit([TEXT]), BPE]


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=["byte", "bpe"])
@settings(deadline=None, max_examples=200)
@given(text=st.text())
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(deadline=None)
@given(known=st.text(min_size=1), other=st.text())
def test_characters_come_back_and_strangers_are_unknown(known, other):
    tokenizer = CharTokenizer.fit([known])
    assert tokenizer.decode(tokenizer.encode(known)) == known
    ids = tokenizer.encode(other)
    assert [i == 0 for i in ids.tolist()] == [c not in known for c in other]
    replaced = "".join(c if c in known else "\N{REPLACEMENT CHARACTER}" for c in other)
    assert tokenizer.decode(ids) == replaced


@pytest.mark.parametrize("tokenizer", ALL, ids=lambda t: t.kind)
def test_ids_fit_and_are_of_the_right_type(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == tokenizer.dtype == np.uint16
    assert ids.max() < tokenizer.vocab_size
    assert len(tokenizer.encode("")) == 0 and tokenizer.decode([]) == ""


@pytest.mark.parametrize("tokenizer", ALL, ids=lambda t: t.kind)
def test_saved_as_json_and_back_it_is_equal(tokenizer):
    data = json.loads(json.dumps(tokenizer.to_dict()))
    again = tokenizer_from_dict(data)
    assert again == tokenizer and again.digest == tokenizer.digest
    np.testing.assert_array_equal(again.encode(TEXT), tokenizer.encode(TEXT))


@pytest.mark.parametrize("tokenizer", ALL, ids=lambda t: t.kind)
@pytest.mark.parametrize("bad", [-1, 10**6])
def test_ids_outside_of_the_vocabulary_are_refused(tokenizer, bad):
    with pytest.raises(DataError, match="another tokenizer"):
        tokenizer.decode([0, bad])


@pytest.mark.parametrize("tokenizer", ALL, ids=lambda t: t.kind)
def test_a_lone_surrogate_does_no_harm(tokenizer):
    assert len(tokenizer.encode("a\udc80b")) == 3


def test_the_vocabulary_is_of_train_only():
    corpus = load_corpus("markov:characters=2000")
    tokenizer = make_tokenizer("char", corpus)
    assert tokenizer.symbols == "".join(sorted(set("".join(corpus.chunks("train")))))


def test_a_large_vocabulary_gets_wider_ids():
    symbols = "".join(map(chr, [*range(1, 0xD800), *range(0xE000, 0x14000)]))
    tokenizer = CharTokenizer(symbols)
    assert tokenizer.dtype == np.uint32
    assert tokenizer.decode(tokenizer.encode(symbols[-9:])) == symbols[-9:]


def test_bpe_compresses_and_training_is_deterministic():
    assert len(BPE.encode(TEXT)) < len(TEXT) / 2
    assert BPETokenizer.fit([TEXT[:100], TEXT[100:]], vocab_size=300) == BPE


SPACES = st.sampled_from([" ", "  ", "\n", "\n\n", " \n "])
WORDS = st.sampled_from(["the", "cat's", "dog.", "12", "é", "..."])


@settings(deadline=None, max_examples=100)
@given(words=st.lists(st.tuples(SPACES, WORDS)), size=st.integers(16, 40), block=st.integers(1, 50))
def test_bpe_of_pieces_is_bpe_of_the_whole(words, size, block):
    text = "a" + "".join(map("".join, words))
    stream = [text[i : i + block] for i in range(0, len(text), block)]
    cut = list(pieces(stream, size))
    assert "".join(cut) == text and max(map(len, cut)) <= size
    ids = np.concatenate([BPE.encode(piece) for piece in cut])
    np.testing.assert_array_equal(ids, BPE.encode(text))


def test_a_text_without_spaces_is_cut_at_the_size():
    assert list(pieces(["abcde", "fghij"], size=4)) == ["abcd", "efgh", "ij"]


def test_a_tokenizer_json_is_loaded(tmp_path):
    (tmp_path / "tokenizer.json").write_text(BPE.json_text, encoding="utf-8")
    corpus = load_corpus("markov:characters=100")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert make_tokenizer(str(path), corpus) == BPE


def test_gpt2_files_are_loaded(tmp_path):
    model = json.loads(BPE.json_text)["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in model["merges"]), ""])
    (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
    loaded = make_tokenizer(str(tmp_path), load_corpus("markov:characters=100"))
    np.testing.assert_array_equal(loaded.encode(TEXT + " # é"), BPE.encode(TEXT + " # é"))


def test_a_merge_that_begins_with_a_number_sign_is_kept(tmp_path):
    vocab = {"#": 0, "!": 1, "##": 2, "a": 3}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n# #\n", encoding="utf-8")
    tokenizer = read_tokenizer_files(tmp_path)
    assert tokenizer.encode("##!").tolist() == [2, 1]


@pytest.mark.parametrize("content", ["", "{}", "[1, 2]", '{"model": {"type": "Other"}}', "\x00"])
def test_a_broken_tokenizer_file_is_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="tokenizer.json.* cannot be used"):
        read_tokenizer_files(tmp_path)


def test_wrong_choices_are_refused(tmp_path):
    corpus = load_corpus("markov:characters=100")
    with pytest.raises(DataError, match="no tokenizer 'chars'"):
        make_tokenizer("chars", corpus)
    with pytest.raises(DataError, match="at least 256"):
        make_tokenizer("bpe", corpus, vocab_size=100)
    with pytest.raises(DataError, match="kind 'word'"):
        tokenizer_from_dict({"kind": "word"})
    with pytest.raises(DataError, match="sorted order"):
        CharTokenizer("ba")
    (tmp_path / "vocab.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="merges.txt cannot be read"):
        read_tokenizer_files(tmp_path)


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ([], "expected a table"),
        (None, "expected a table"),
        ({}, "kind 'None' is not known"),
        ({"kind": ["byte"]}, "is not known"),
        ({"kind": "char"}, "symbols"),
        ({"kind": "char", "symbols": 3}, "distinct characters"),
        ({"kind": "char", "symbols": ["a", "b"]}, "distinct characters"),
        ({"kind": "byte", "x": 1}, "unexpected keyword argument 'x'"),
        ({"kind": "bpe"}, "it has no 'tokenizer'"),
        ({"kind": "bpe", "tokenizer": []}, "cannot be used"),
    ],
    ids=str,
)
def test_what_is_no_saved_tokenizer_is_a_sentence(saved, words):
    with pytest.raises(DataError, match=words):
        tokenizer_from_dict(saved)


def test_bits_per_byte():
    assert TokenSplit(np.zeros(8), bytes=1).bits_per_byte(math.log(2)) == pytest.approx(8)
    assert TokenSplit(np.zeros(100), bytes=400).bits_per_byte(1.0) == pytest.approx(0.25 / math.log(2))


def foreign(model, normalizer=None, pre_tokenizer=None, decoder=None, cut=None):
    """A tokenizer as another program might have written it."""
    from tokenizers import Tokenizer as Backend

    backend = Backend(model)
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer)):
        if part is not None:
            setattr(backend, name, part)
    backend.decoder = decoder or decoders.Fuse()
    if cut is not None:
        backend.enable_truncation(cut)
        backend.enable_padding(length=cut)
    return BPETokenizer.parse(backend.to_str(), "a test")


def of_words(*words):
    """Words between spaces, and one token for all others."""
    vocab = {word: i for i, word in enumerate(("[UNK]", *words))}
    return models.WordLevel(vocab, unk_token="[UNK]")


@pytest.mark.parametrize(
    ("tokenizer", "text", "lost"),
    [
        (ByteTokenizer(), "né \N{REPLACEMENT CHARACTER}", 0),
        (BPE, "né \N{REPLACEMENT CHARACTER}", 0),
        (CharTokenizer("ab"), "abz", 1),
        (CharTokenizer("ab"), "aé€\U0001f600\N{REPLACEMENT CHARACTER}", 2 + 3 + 4 + 3),
        (foreign(models.BPE(vocab=ABC, merges=[])), "abc cab", 0),
        (foreign(models.BPE(vocab=ABC, merges=[])), "abc xyz é", 5),
        (foreign(models.BPE(vocab=ABC, merges=[])), "xyz", 3),
        (foreign(models.BPE(vocab=ABC, merges=[]), normalizers.Lowercase()), "aBC", 2),
        (foreign(models.BPE(vocab=ABC, merges=[]), cut=4), "abc" * 50, 0),
        (foreign(of_words("ab"), None, pre_tokenizers.WhitespaceSplit()), "ab xyz", 4),
        (foreign(of_words("ab"), None, pre_tokenizers.WhitespaceSplit()), "ab UNK", 4),
        (foreign(of_words("ab"), None, pre_tokenizers.WhitespaceSplit()), "ab [UNK] UNK", 5),
        (foreign(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0, False)), "aunka", 3),
        (
            foreign(
                models.BPE(vocab={"▁": 0, "a": 1, "b": 2}, merges=[]),
                None,
                pre_tokenizers.Metaspace(),
                decoders.Metaspace(),
            ),
            " ab ab",
            0,
        ),
    ],
    ids=[
        *("byte", "bpe", "char", "wide", "whole", "dropped", "all dropped", "lowercase", "cut"),
        *("unknown word", "unknown word of its letters", "unknown word itself", "unigram"),
        "space at the beginning",
    ],
)
def test_lost_bytes_are_those_that_do_not_come_back(tokenizer, text, lost):
    assert tokenizer.lost_bytes(text, tokenizer.encode(text)) == lost


def test_a_tokenizer_without_its_unknown_token_is_a_sentence():
    tokenizer = foreign(models.WordLevel({"ab": 0, "c": 1}, unk_token="[UNK]"))
    assert tokenizer.encode("ab").tolist() == [0]
    with pytest.raises(DataError, match=r"cannot read the text: .*Add the token"):
        tokenizer.encode("xyz")

"""Corpora: what each kind reads, how it splits, and what its digest notices."""

import itertools
import os
import re
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvflow.data import SPLITS, DataError, TextDocument, load_corpus, make_corpus
from qkvflow.data.wikitext import LINES
from qkvflow.extras import pip_line

DATA = os.environ.get("QKVFLOW_DATA")
WIKI = {"train": "a train text\n" * 50, "valid": "a valid text\n", "test": "a test text\n"}


def text_of(corpus, split):
    return "".join(corpus.chunks(split))


def write_splits(directory, layout, texts=WIKI):
    directory.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():
        (directory / layout.format(split)).write_text(text, encoding="utf-8")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("QKVFLOW_DATA", raising=False)


@pytest.fixture(scope="module")
def embedded():
    return load_corpus("embedded")


def test_embedded_splits_share_no_document_and_no_paragraph(embedded):
    names = {split: {d.name for d in embedded[split].documents} for split in SPLITS}
    paragraphs = {
        split: {" ".join(p.split()) for p in text_of(embedded, split).split("\n\n")} for split in SPLITS
    }
    for one, two in itertools.combinations(SPLITS, 2):
        assert not names[one] & names[two]
        assert not {p for p in paragraphs[one] & paragraphs[two] if len(p) > 60}


def test_embedded_has_both_kinds_of_text_a_sensible_size_and_few_symbols(embedded):
    size = sum(embedded[split].bytes for split in SPLITS)
    assert 2_000_000 < size <= 4_100_000
    assert all(embedded[split].bytes > 0.02 * size for split in SPLITS)
    kinds = {d.name.split("/")[0] for d in embedded["train"].documents}
    assert kinds == {"lib", "topics"}
    assert len(set(text_of(embedded, "train"))) <= 96
    assert ".".join(map(str, sys.version_info[:3])) in embedded.source


def test_embedded_is_the_same_every_time(embedded):
    assert load_corpus("embedded").digest == embedded.digest


def test_a_file_is_cut_90_5_5_at_line_ends(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("".join(f"line {i}\n" for i in range(2000)), encoding="utf-8")
    corpus = load_corpus(path)
    texts = [text_of(corpus, split) for split in SPLITS]
    assert "".join(texts) == path.read_text(encoding="utf-8")
    assert all(text.endswith("\n") and text.startswith("line ") for text in texts)
    shares = [len(text) / sum(map(len, texts)) for text in texts]
    assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.002)


@settings(deadline=None, max_examples=60)
@given(text=st.text(alphabet="aé\u4e2d\U0001f600\n", min_size=3, max_size=300))
def test_any_cut_keeps_every_character_once(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("cut") / "text"
    path.write_text("ab" + text, encoding="utf-8", newline="")
    try:
        corpus = load_corpus(path)
    except DataError as error:
        assert "is empty" in str(error) and len(text.encode()) < 60
        return
    assert "".join(text_of(corpus, split) for split in SPLITS) == "ab" + text


def test_one_long_line_is_cut_between_characters(tmp_path):
    path = tmp_path / "text8"
    path.write_text("é" * 100_000 + "a" * 100_001, encoding="utf-8")
    corpus = load_corpus(path)
    assert corpus["valid"].characters == pytest.approx(15_000, abs=3)


def test_newlines_are_left_alone(tmp_path):
    write_splits(tmp_path, "{}.txt")
    (tmp_path / "train.txt").write_bytes(b"one\r\ntwo\rthree\n")
    assert text_of(load_corpus(tmp_path), "train") == "one\r\ntwo\rthree\n"


@pytest.mark.parametrize("layout", ["{}.txt", "wiki.{}.tokens", "wiki.{}.raw"])
def test_a_directory_with_split_files(tmp_path, layout):
    write_splits(tmp_path, layout)
    corpus = load_corpus(tmp_path)
    assert {split: text_of(corpus, split) for split in SPLITS} == WIKI


def test_a_directory_of_documents_is_dealt_by_name(tmp_path):
    for i in range(60):
        path = tmp_path / f"part{i % 3}" / f"{i}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"document {i}", encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\0\1")
    (tmp_path / ".hidden.txt").write_text("no", encoding="utf-8")
    corpus = load_corpus(tmp_path)
    names = [d.name for split in SPLITS for d in corpus[split].documents]
    assert len(names) == len(set(names)) == 60
    assert [len(corpus[split].documents) for split in SPLITS] == [54, 3, 3]
    assert text_of(corpus, "valid").count("document") == 3
    assert "\n\ndocument" in text_of(corpus, "valid")


def test_the_digest_notices_text_and_split_but_not_the_place(tmp_path):
    digests = []
    for name, change in [("a", {}), ("b", {}), ("c", {"test": "a tesT text\n"})]:
        write_splits(tmp_path / name, "{}.txt", WIKI | change)
        digests.append(load_corpus(tmp_path / name).digest)
    assert digests[0] == digests[1] != digests[2]
    moved = WIKI | {"train": WIKI["train"] + "a", "valid": WIKI["valid"][1:]}
    write_splits(tmp_path / "d", "{}.txt", moved)
    assert load_corpus(tmp_path / "d").digest != digests[0]


def test_the_digest_covers_the_rule_and_not_the_name():
    splits = {split: [TextDocument(split, text)] for split, text in WIKI.items()}
    one, two, other = (
        make_corpus(name, "", splits, rule)
        for name, rule in [("a", "by hand"), ("b", "by hand"), ("a", "by lot")]
    )
    assert one.digest == two.digest != other.digest
    with pytest.raises(DataError, match="valid split of a is empty"):
        make_corpus("a", "", {"train": splits["train"]}, "by hand")


@pytest.mark.parametrize("layout", ["{}.txt", "wiki.{}.tokens"])
@pytest.mark.parametrize("place", [".", "wikitext-2", "wikitext-2-raw"])
def test_wikitext_is_found_by_argument_and_by_environment(tmp_path, monkeypatch, layout, place):
    write_splits(tmp_path / "data" / place, layout)
    corpus = load_corpus("wikitext-2", data_dir=tmp_path / "data")
    monkeypatch.setenv("QKVFLOW_DATA", str(tmp_path / "data"))
    assert load_corpus("wikitext-2").digest == corpus.digest
    assert corpus.name == "wikitext-2" and text_of(corpus, "valid") == WIKI["valid"]


def test_the_beginning_of_a_wikitext_has_its_valid_and_test_split_whole(tmp_path):
    write_splits(tmp_path, "{}.txt")
    whole = load_corpus("wikitext-2", data_dir=tmp_path)
    part = load_corpus("wikitext-2:characters=7", data_dir=tmp_path)
    assert text_of(part, "train") == text_of(whole, "train")[:7]
    assert part["train"].characters == 7 and part.digest != whole.digest
    assert all(text_of(part, split) == text_of(whole, split) for split in ("valid", "test"))
    for options, words in (
        ("characters=99999999", "and 99,999,999 were asked for"),
        ("characters=0", "and 0 were asked for"),
        ("characters=-3", "wikitext-2 has one option"),
        ("documents=3", "wikitext-2:characters=500000, and 'documents=3' came"),
    ):
        with pytest.raises(DataError, match=words):
            load_corpus(f"wikitext-2:{options}", data_dir=tmp_path)


def test_one_wikitext_is_not_taken_for_the_other(tmp_path):
    write_splits(tmp_path / "wikitext-2", "{}.txt")
    assert load_corpus("wikitext-2", data_dir=tmp_path / "wikitext-2").name == "wikitext-2"
    for data_dir in (tmp_path, tmp_path / "wikitext-2"):
        with pytest.raises(DataError, match="does not hold wikitext-103"):
            load_corpus("wikitext-103", data_dir=data_dir)


@pytest.mark.skipif(not DATA, reason="QKVFLOW_DATA does not name a data directory")
def test_the_real_wikitext_2():
    corpus = load_corpus("wikitext-2", data_dir=DATA)
    counts = [corpus[split].characters for split in SPLITS]
    assert counts == [10_780_437, 1_120_192, 1_255_018]


def fake_datasets(monkeypatch, load):
    module = types.ModuleType("datasets")
    module.load_dataset = load
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_wikitext_from_the_hub_is_restored_and_kept(tmp_path, monkeypatch):
    calls = []

    def load(path, config, *, split, streaming):
        calls.append((path, config, split, streaming))
        return [{"text": ""}, {"text": f" = {split} = \n"}, {"text": " some words \n"}]

    fake_datasets(monkeypatch, load)
    with pytest.raises(DataError, match="3 lines in its train split; expected 1,801,350"):
        load_corpus("wikitext-103", cache_dir=tmp_path)
    assert not list((tmp_path / "hub").iterdir())
    calls.clear()
    monkeypatch.setitem(LINES, "wikitext-103", (3, 3, 3))
    corpus = load_corpus("wikitext-103", cache_dir=tmp_path)
    assert text_of(corpus, "valid") == " \n = validation = \n some words \n"
    assert calls[0] == ("Salesforce/wikitext", "wikitext-103-v1", "train", True)
    assert load_corpus("wikitext-103", cache_dir=tmp_path).digest == corpus.digest
    assert len(calls) == 3


def test_a_dataset_is_streamed_up_to_the_limit_and_kept(tmp_path, monkeypatch):
    read = []

    def load(path, config, *, split, streaming):
        assert (path, config, split, streaming) == ("allenai/c4", "en", "train", True)
        return ({"text": f"page {i} \0", "url": read.append(i)} for i in itertools.count())

    fake_datasets(monkeypatch, load)
    corpus = load_corpus("hf:allenai/c4/en", limit=300, cache_dir=tmp_path)
    assert len(read) == 300
    pages = [p for split in SPLITS for p in text_of(corpus, split).split("\n\n") if p]
    assert sorted(pages) == sorted(f"page {i}" for i in range(300))
    assert load_corpus("hf:allenai/c4/en", limit=300, cache_dir=tmp_path).digest == corpus.digest
    assert len(read) == 300


def test_equal_documents_of_a_dataset_fall_into_one_split(tmp_path, monkeypatch):
    rows = [{"text": f"page {i % 100}"} for i in range(300)]
    fake_datasets(monkeypatch, lambda *_, **__: rows)
    corpus = load_corpus("hf:some/thing", cache_dir=tmp_path)
    pages = {split: set(text_of(corpus, split).split("\n\n")) - {""} for split in SPLITS}
    assert not pages["train"] & (pages["valid"] | pages["test"])


def test_a_dataset_without_the_column_names_those_it_has(tmp_path, monkeypatch):
    fake_datasets(monkeypatch, lambda *_, **__: [{"content": "x", "id": 1}])
    with pytest.raises(DataError, match="no text in 'text'; they hold content, id"):
        load_corpus("hf:some/thing", cache_dir=tmp_path)
    assert not list((tmp_path / "hub").iterdir())


def test_a_dataset_that_breaks_off_leaves_nothing(tmp_path, monkeypatch):
    def rows():
        yield {"text": "one page"}
        raise ConnectionError("the network is unreachable")

    fake_datasets(monkeypatch, lambda *_, **__: rows())
    with pytest.raises(DataError, match="network is unreachable.*QKVFLOW_DATA"):
        load_corpus("hf:some/thing", cache_dir=tmp_path)
    assert not list((tmp_path / "hub").iterdir())


@pytest.mark.parametrize("name", ["wikitext-2", "hf:allenai/c4/en"])
def test_without_the_extra_the_error_says_how_to_get_it(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=re.escape(pip_line("data"))):
        load_corpus(name, cache_dir=tmp_path)


def test_a_wrong_dataset_name_or_limit_is_refused(tmp_path):
    with pytest.raises(DataError, match="has 4 parts"):
        load_corpus("hf:a/b/c/d", cache_dir=tmp_path)
    with pytest.raises(DataError, match="limit is 0"):
        load_corpus("hf:a/b", limit=0, cache_dir=tmp_path)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_the_real_datasets_package_reads_local_files(tmp_path, kind):
    pytest.importorskip("datasets")
    import json

    source = tmp_path / "source"
    source.mkdir()
    pages = [f"page {i}" for i in range(200)]
    lines = [json.dumps({"text": page}) if kind == "jsonl" else page for page in pages]
    (source / f"train.{kind}").write_text("\n".join(lines), encoding="utf-8")
    corpus = load_corpus(f"hf:{source}", limit=150, cache_dir=tmp_path / "cache")
    found = [p for split in SPLITS for p in text_of(corpus, split).split("\n\n") if p]
    assert sorted(found) == sorted(pages[:150])


@pytest.mark.filterwarnings("default")
def test_the_real_datasets_package_offline(tmp_path):
    pytest.importorskip("datasets")
    import subprocess

    code = (
        "from qkvflow.data import load_corpus, DataError\n"
        f"try: load_corpus('wikitext-2', cache_dir={str(tmp_path)!r})\n"
        "except DataError as error: print(error)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "wikitext-2 was not found" in run.stdout and "Check the name" in run.stdout

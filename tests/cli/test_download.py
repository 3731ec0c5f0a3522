"""Downloads from a server on this machine: whole and checked, or not at all and a sentence."""

import hashlib
import http.server
import sys
import threading
import types

import jax
import pytest

import qkvflow
from qkvflow.cli.main import main
from qkvflow.data import BPETokenizer, load_corpus
from qkvflow.data.wikitext import LINES
from tests.models.gpt2_files import write_gpt2

LARGE = "model.safetensors"


class Hub(http.server.BaseHTTPRequestHandler):
    """Files of one repository; the large one is elsewhere, as on the hub, with its sha256."""

    files: dict
    sha256: str
    told = 0
    """Bytes that it promises beside those that it sends."""

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        if name not in self.files:
            self.send_error(404)
        elif name == LARGE and "/resolve/" in self.path:
            self.send_response(302)
            self.send_header("Location", f"/elsewhere/{name}")
            self.send_header("X-Linked-Etag", f'"{self.sha256}"')
            self.end_headers()
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.files[name]) + self.told))
            self.end_headers()
            self.wfile.write(self.files[name])

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with a small GPT-2, and an empty working directory."""
    write_gpt2(tmp_path / "gpt2", vocab_size=300)
    files = {path.name: path.read_bytes() for path in (tmp_path / "gpt2").iterdir()}
    files["tokenizer.json"] = BPETokenizer.fit(["some words"], 256).json_text.encode()
    sha256 = hashlib.sha256(files[LARGE]).hexdigest()
    kind = type("Own", (Hub,), {"files": files, "sha256": sha256})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("QKVFLOW_DATA", raising=False)
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            yield kind
        server.shutdown()


def test_gpt2_comes_whole_and_is_imported(hub, tmp_path, capsys):
    assert main(["download", "gpt2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("models/gpt2 is downloaded and checked.")
    for name in ("config.json", "tokenizer.json", LARGE):
        assert (tmp_path / "work" / "models" / "gpt2" / name).read_bytes() == hub.files[name]
    command = said.rpartition("Use it with qkvflow ")[2].strip().removesuffix(".")
    assert main(command.split()) == 0
    assert qkvflow.load("models/gpt2-imported").config.num_layers == 3
    hub.files.clear()
    assert main(["download", "gpt2"]) == 0, "nothing is asked of the hub"
    assert "models/gpt2 already exists" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda hub: hub.files.pop(LARGE), "could not be fetched: HTTP Error 404"),
        (lambda hub: setattr(hub, "told", 10), "broke off after"),
        (lambda hub: setattr(hub, "sha256", "0" * 64), "did not come as it is on the hub"),
        (lambda hub: hub.files.update({"config.json": b"{}"}), "describes a model of type None"),
    ],
)
def test_what_does_not_come_whole_is_not_kept(hub, tmp_path, capsys, damage, words):
    damage(hub)
    assert main(["download", "gpt2", "--to", "elsewhere"]) == 2
    assert words in capsys.readouterr().err
    assert not [path for path in (tmp_path / "work").rglob("*") if path.is_file()]


def test_a_hub_that_is_not_there_is_a_sentence_on_what_to_fetch(hub, monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["download", "gpt2"]) == 2
    said = capsys.readouterr().err
    assert "Connection refused" in said
    by_hand = "By hand: put config.json, tokenizer.json, model.safetensors from "
    assert f"{by_hand}http://127.0.0.1:9/openai-community/gpt2 into models/gpt2." in said


@pytest.fixture
def _a_short_wikitext(monkeypatch):
    def load(path, config, *, split, streaming):
        assert (path, config) == ("Salesforce/wikitext", "wikitext-2-v1")
        return [{"text": ""}, {"text": f" = {split} = \n"}, {"text": " some words \n"}]

    module = types.ModuleType("datasets")
    module.load_dataset = load
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setitem(LINES, "wikitext-2", (3, 3, 3))


@pytest.mark.usefixtures("_a_short_wikitext")
@pytest.mark.parametrize("to", [None, "texts"])
def test_wikitext_is_found_where_it_was_downloaded_to(hub, tmp_path, monkeypatch, capsys, to):
    where = [] if to is None else ["--to", to]
    assert main(["download", "wikitext-2", *where]) == 0
    said = capsys.readouterr().out
    assert "is downloaded and checked. Use it with --data wikitext-2" in said
    if to is not None:
        assert "QKVFLOW_DATA=texts" in said
        monkeypatch.setenv("QKVFLOW_DATA", to)
    monkeypatch.setitem(sys.modules, "datasets", None)  # nothing more is fetched
    assert [*load_corpus("wikitext-2").chunks("valid")] == [" \n = validation = \n some words \n"]
    assert main(["download", "wikitext-2", *where]) == 0
    assert "already exists" in capsys.readouterr().out


def test_wikitext_that_cannot_be_had_is_a_sentence_on_where_to_put_it(hub, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert main(["download", "wikitext-2", "--to", "texts"]) == 2
    said = capsys.readouterr().err
    assert "wikitext-2 was not downloaded" in said and "pip install" in said
    assert "By hand: put train.txt, valid.txt and test.txt" in said and "texts/wikitext-2." in said

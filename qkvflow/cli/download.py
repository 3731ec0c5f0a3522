"""Download a text or a model from the Hugging Face hub to where the other commands find it.

    qkvflow download wikitext-2                    # then: qkvflow train --data wikitext-2 ...
    qkvflow download wikitext-103 --to texts       # then: QKVFLOW_DATA=texts qkvflow train ...
    qkvflow download gpt2                          # then: qkvflow import --gpt2 models/gpt2 ...

Downloads are checked, and an incomplete one leaves nothing behind. Without a network, the command says
which files to fetch by hand and where to put them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from qkvflow.data import DataError, default_cache_dir, read_tokenizer_files
from qkvflow.data.files import find_split_files
from qkvflow.data.hub import address_of, fetch_files, kept_at
from qkvflow.data.wikitext import DATA_VARIABLE, ON_THE_HUB, keep_wikitext
from qkvflow.files import FileError, building, file_errors
from qkvflow.models import import_gpt2
from qkvflow.progress import elapsed

GPT2 = "openai-community/gpt2"
GPT2_FILES = ("config.json", "tokenizer.json", "model.safetensors")
MODELS = Path("models")


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow download`."""

    what: tyro.conf.Positional[Literal["wikitext-2", "wikitext-103", "gpt2"]]
    """Text (wikitext-2, wikitext-103) or model (gpt2, 124M parameters) to download."""
    to: Path | None = None
    """Directory in which a directory named after the download is created. None: for texts the cache,
    where --data finds them; for gpt2 models/."""


def run(options: Options) -> None:
    """Download it unless it is there; say where it is and how to use it."""
    print(_gpt2(options.to or MODELS) if options.what == "gpt2" else _text(options.what, options.to))


def _text(name: str, to: Path | None) -> str:
    directory = kept_at(name, default_cache_dir()) if to is None else to / name
    there_before = directory.is_dir() and find_split_files(directory) is not None
    if not there_before:
        try:
            with elapsed(f"asking the hub for {name}"):
                keep_wikitext(name, directory)
        except DataError as error:
            raise DataError(
                f"{name} was not downloaded. {error} By hand: put train.txt, valid.txt and test.txt "
                f"(or wiki.train.tokens and so on) from {address_of(f'datasets/{ON_THE_HUB}')} or any "
                f"other copy into {directory}."
            ) from error
    use = f"--data {name}" if to is None else f"--data {name}, with {DATA_VARIABLE}={to}"
    return f"{_there(directory, there_before)} Use it with {use}."


def _gpt2(to: Path) -> str:
    directory = to / "gpt2"
    if there_before := directory.is_dir():
        _check_gpt2(directory)
    else:
        try:
            with (
                file_errors(f"{directory} cannot be written"),
                building(directory) as temporary,
            ):
                fetch_files(GPT2, GPT2_FILES, temporary)
                _check_gpt2(temporary)
        except DataError as error:
            files = ", ".join(GPT2_FILES)
            raise DataError(
                f"gpt2 was not downloaded. {error} By hand: put {files} from {address_of(GPT2)} "
                f"into {directory}."
            ) from error
    use = f"qkvflow import --gpt2 {directory} --out {directory}-imported"
    return f"{_there(directory, there_before)} Use it with {use}."


def _check_gpt2(directory: Path) -> None:
    """Refuse a directory from which `import` could not make the model.

    Raises:
        FileError: a file is missing or broken.
        DataError: so is the tokenizer.
    """
    ids, size = read_tokenizer_files(directory).vocab_size, import_gpt2(directory).config.vocab_size
    if ids > size:
        raise FileError(f"{directory} has a tokenizer of {ids} ids for a model of {size}: delete it.")


def _there(directory: Path, before: bool) -> str:
    return f"{directory} already exists." if before else f"{directory} is downloaded and checked."

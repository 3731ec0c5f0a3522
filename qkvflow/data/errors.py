"""The one exception of this package, and the help that its messages give."""

from collections.abc import Iterable


class DataError(ValueError):
    """Text, a tokenizer or a token file that cannot be used; the message says what to do."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like `word`.

    >>> nearest("wikitex2", ["embedded", "wikitext-2"])
    'wikitext-2'
    """
    import difflib  # only ever needed on the way to an error

    return difflib.get_close_matches(word, list(known), n=1, cutoff=0.0)[0]

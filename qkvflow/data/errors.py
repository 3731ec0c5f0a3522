"""The one exception of this package."""


class DataError(ValueError):
    """Text, a tokenizer or a token file that cannot be used; the message says what to do."""

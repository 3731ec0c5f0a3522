"""Language models whose weights are functions of depth."""

__version__ = "0.1.0"

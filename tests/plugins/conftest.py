"""Plugins of one test are not those of the next."""

import sys

import pytest

from qkvflow import plugins
from qkvflow.data import CORPORA


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch):
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(CORPORA, "_entries", dict(CORPORA))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith(("qkvflow_plugin_", "installed_idea")):
            del sys.modules[name]

"""What the tests share: a small configuration, random parameters and tokens, a headless browser."""

import base64
import dataclasses
import json
import re
import shutil
import subprocess

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.config import Gpt2Config
from qkvflow.models import build_model
from qkvflow.nn.families import FAMILIES

FIXED_STEP = ("residual", "euler", "heun", "rk4")
FLAVOURS = ("gpt2", "llama", "modern")
RELAXED = {"family": "looped", "around": "gated"}
WEIGHTS = (*FAMILIES, RELAXED)
SMALL_SSM = {"part": "ssm", "state_size": 4, "head_size": 8, "chunk_size": 8}


def small_config(**changes):
    """A model that compiles fast and has every feature: grouped queries, several chunks."""
    fields = {
        "num_layers": 2,
        "hidden_dim": 16,
        "num_heads": 4,
        "num_kv_heads": 2,
        "vocab_size": 13,
        "max_position_embeddings": 128,
        "mlp_ratio": 2,
        "time_embed_dim": 6,
        "sinusoidal_dim": 3,
    }
    fields |= changes
    if fields.get("parts"):
        fields["parts"] = tuple(SMALL_SSM if part == "ssm" else part for part in fields["parts"])
    if fields.get("weights") == "low_rank":
        fields["weights"] = {"family": "low_rank", "rank": 2}
    return Gpt2Config(**fields)


def randomised(tree, seed=0, scale=0.3):
    """The same tree with noise on every array, so that no gate, adapter or bias is at its start."""
    noise = np.random.default_rng(seed)

    def shake(leaf):
        if not eqx.is_inexact_array_like(leaf) or isinstance(leaf, float):
            return leaf
        return jnp.asarray(np.asarray(leaf) + scale * noise.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(shake, tree)


def random_model(name, config, seed=0, scale=0.3):
    """A named model at random parameters; its own start is never computed, which saves compiling it."""
    if config.parts is None and name == "time_indexed_ssm":
        config = dataclasses.replace(config, parts=("attention", SMALL_SSM))
    shapes = eqx.filter_eval_shape(build_model, name, config, key=jax.random.key(0))
    zeros = jax.tree.map(
        lambda leaf: (
            np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        ),
        shapes,
    )
    return randomised(zeros, seed, scale)


def token_ids(config, *, batch=2, length=9, seed=1):
    """Random ids with the axes batch and position."""
    ids = np.random.default_rng(seed).integers(0, config.vocab_size, (batch, length))
    return hax.named(jnp.asarray(ids, jnp.int32), ("batch", "position"))


def difference(a, b):
    """The largest absolute difference of two trees of arrays."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.max(np.abs(np.asarray(x) - np.asarray(y)))) for x, y in pairs)


def parameter_count(tree):
    """The idiom of the documentation."""
    return sum(x.size for x in jax.tree_util.tree_leaves(eqx.filter(tree, eqx.is_array)))


def float64(tree):
    """The same tree in double precision; needs jax.enable_x64."""
    return jax.tree.map(
        lambda x: jnp.asarray(np.asarray(x), jnp.float64) if eqx.is_inexact_array(x) else x, tree
    )


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: the page was not opened in a browser"
)

COUNT_PARTS = """
    const images = [...document.images].map(image => image.naturalWidth);
    return {images, tables: document.querySelectorAll("table").length};"""


ONLY_ITSELF = """<head><meta http-equiv="Content-Security-Policy"
    content="default-src data: 'unsafe-inline'">"""


def look_at(page, directory, script):
    """What the body of a function in JavaScript returns when the page has loaded.

    Errors fail, and so does a page that asks for anything that is not in it.
    """
    probe = directory / "probe.html"
    report = f"""<script>window.addEventListener("load", () => {{
        const found = (() => {{ {script} }})();
        document.title = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
    }});</script></body>"""
    probe.write_text(page.read_text().replace("</body>", report).replace("<head>", ONLY_ITSELF))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={directory / 'profile'}"]
    command += ["--enable-logging=stderr", "--dump-dom", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    return json.loads(base64.b64decode(re.search(r"<title>(.*?)</title>", done.stdout)[1]))

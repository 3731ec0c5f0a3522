"""What must not change while the house is rebuilt: what every named model computes.

numbers.json has this, and what experiments said. `python -m tests.unchanged.numbers` writes the models'
numbers anew, where a change of one is meant.
"""

import hashlib
import json
import platform
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import tests.conftest  # noqa: F401  the compiler's flags, before JAX starts
from qkvflow.config import Gpt2Config, OptimizerConfig, RunConfig
from qkvflow.models import MODELS, build_model, count_parameters, forward_flops, training_flops
from qkvflow.train.step import Learner
from tests.support import randomised

NUMBERS = Path(__file__).parent / "numbers.json"
BATCH, LENGTH, STEPS, VOCABULARY = 4, 16, 20, 13
CASES = [f"{name}/{flavour}" for name in MODELS for flavour in ("gpt2", "llama")]


def run_of(case):
    """A short run of a named model in a flavour; small, and dropout has a part in it."""
    name, flavour = case.split("/")
    architecture = Gpt2Config(
        hidden_dim=32,
        num_heads=4,
        num_kv_heads=2,
        num_layers=3,
        mlp_ratio=2,
        time_embed_dim=6,
        sinusoidal_dim=3,
        flavour=flavour,
        resid_pdrop=0.1,
    )
    return RunConfig(
        model=name,
        steps=STEPS,
        batch_size=BATCH,
        length=LENGTH,
        architecture=architecture,
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup=2),
    )


def numbers_of(case):
    """Losses of a short training, logits at random parameters, counts and the decay mask."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # for optax
        return _numbers(run_of(case))


def _numbers(run):
    learner = Learner.of(run, run.model_config(VOCABULARY))
    model = randomised(build_model(run.model, learner.model.config, key=jax.random.key(1)), scale=0.1)
    rng = np.random.default_rng(2)
    ids = rng.integers(0, VOCABULARY, (STEPS, BATCH, LENGTH + 1)).astype(np.int32)
    state, step, losses = learner.start(jnp.uint32(3)), jax.jit(learner.step), []
    for batch in ids:
        state, report = step(state, jnp.uint32(3), batch[:, :-1], batch[:, 1:])
        losses.append(float(report.loss))
    logits = np.asarray(_logits(model, ids[0, :, :-1]))
    parameters = count_parameters(model)
    return {
        "losses": losses,
        "logits": [float(x) for x in logits[0, -1]],
        "logits_sha256": hashlib.sha256(logits.tobytes()).hexdigest(),
        "parameters": {
            name: getattr(parameters, name) for name in ("embedding", "base", "time_network", "head")
        },
        "forward_flops": forward_flops(model, BATCH, LENGTH),
        "training_flops": training_flops(model, BATCH, LENGTH),
        "decayed": sorted(path for path, decays in decay_mask(model).items() if decays),
        "kept": sorted(path for path, decays in decay_mask(model).items() if not decays),
    }


def decay_mask(model):
    """Whether weight decay acts on each array, by path."""
    return {path: parameter.decays for path, parameter in model.parameters().items()}


@eqx.filter_jit
def _logits(model, ids):
    import haliax as hax

    return model(hax.named(ids, ("batch", "position"))).array


def machine():
    """What decides the last bits of a number."""
    import importlib.metadata

    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.is_file() else ""
    names = [
        line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")
    ]
    flags = [line for line in text.splitlines() if line.startswith("flags")]
    return {
        "processor": names[0] if names else platform.processor(),
        "flags": hashlib.sha256(flags[0].encode()).hexdigest()[:12] if flags else "",
        "jaxlib": importlib.metadata.version("jaxlib"),
    }


def main():
    """Write the numbers of the models; those of experiments stay."""
    cases = {case: numbers_of(case) for case in CASES}
    write({**json.loads(NUMBERS.read_text()), "machine": machine(), "cases": cases})


def write(tables):
    """One line an entry of each table."""
    texts = []
    for name, entries in tables.items():
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
        texts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    NUMBERS.write_text("{\n" + ",\n".join(texts) + "\n}\n")


if __name__ == "__main__":
    main()

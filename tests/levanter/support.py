"""A little run of Levanter: text, tokenizer and config in files; processes that train."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
STEPS = 6
WORDS = ("a", "weight", "is", "curve", "over", "depth", "and", "model", "its", "integral")
SSM = {"part": "ssm", "state_size": 8, "head_size": 8, "chunk_size": 8}
CONFIG = {
    "model": {
        "type": "qkvflow",
        "name": "time_indexed_ssm",
        "max_seq_len": 32,
        "architecture": {
            **{"hidden_dim": 32, "num_heads": 4, "num_layers": 2},
            **{"time_embed_dim": 8, "sinusoidal_dim": 4, "parts": ["attention", SSM]},
        },
    },
    "data": {
        "tokenizer": "bytes",
        "cache_dir": "cache",
        "components": {
            "text": {
                "source": {
                    "type": "url",
                    "train_urls": ["text.jsonl"],
                    "validation_urls": ["text.jsonl"],
                }
            }
        },
    },
    "optimizer": {"type": "adam", "learning_rate": 3e-3, "weight_decay": 0.1},
    "trainer": {
        **{"id": "run", "mp": "f32", "train_batch_size": 8, "num_train_steps": STEPS},
        **{"steps_per_eval": 3, "max_eval_batches": 2, "require_accelerator": False},
        **{"log_jaxprs": False, "log_xla_hlo": False, "log_dir": "logs"},
        "tracker": {"type": "json_logger"},
        "checkpointer": {
            **{"base_path": "checkpoints", "save_interval": "10m", "keep": [{"every": 2}]}
        },
    },
}


def write_files(folder, **model):
    """Text, a tokenizer of 260 ids and a config, for processes that work in the folder."""
    choose = random.Random(0)
    texts = [" ".join(choose.choices(WORDS, k=choose.randint(5, 60))) for _ in range(200)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "text.jsonl").write_text(lines)
    shutil.copytree(ROOT / "configs" / "bytes", folder / "bytes")
    tokenizer = json.loads((folder / "bytes" / "tokenizer.json").read_text())
    (last,) = tokenizer["added_tokens"]
    more = [{**last, "id": last["id"] + i, "content": f"<|{i}|>"} for i in (1, 2, 3)]
    tokenizer["added_tokens"] += more  # so that the vocabulary can be cut in four
    (folder / "bytes" / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {**CONFIG, "model": {**CONFIG["model"], **model}}
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    return folder / "run.yaml"


def environment(devices=1):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    own = {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "MARIN_PREFIX": "marin"}
    return {**os.environ, **own}


def command(*words):
    return [sys.executable, "-W", "ignore", "-m", "qkvflow", "levanter", *map(str, words)]


def call(folder, *words, devices=1):
    """A command in the folder, whatever it returns."""
    return subprocess.run(
        command(*words),
        cwd=folder,
        env=environment(devices),
        capture_output=True,
        text=True,
        check=False,
    )


def train(folder, run, *options, devices=1):
    """The loss of every step of a run, by a process of its own."""
    done = call(folder, "train", "--config", "run.yaml", "--trainer.id", run, *options, devices=devices)
    assert done.returncode == 0, done.stderr[-3000:]
    return losses_in(done.stderr)


def losses_in(text):
    """The loss of every step of which a log tells."""
    found = re.findall(r'"step": (\d+), "metrics": \{"train/loss": ([\d.]+)', text)
    return {int(step): float(loss) for step, loss in found}


def difference(first, second):
    assert first.keys() == second.keys()
    return max(abs(first[step] - second[step]) for step in first)

"""Training and judging by answers: which tokens count, and how many answers are right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.config import ConfigError
from qkvflow.data import DataError
from qkvflow.models.language_model import final_state, losses_of
from qkvflow.train import evaluate, read_metrics, train
from qkvflow.train.evaluation import answer_mask
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data
from qkvflow.train.step import mean_of_known
from tests.train.support import tiny_run, with_optimizer, write_text

DATA = "addition:operands=2,test_operands=3,digits=2,problems=200"
WIDTH = 13
"""Of its problems, such as 99+99+99=792."""


def answering(**changes):
    return tiny_run(DATA, **{"answers_only": True, "length": 2 * WIDTH, **changes})


def test_only_answers_are_targets_and_the_others_have_no_part_in_the_loss():
    run = answering(seeds=2)
    data = open_data(run)
    program = Program(run, data)
    inputs, targets = (np.asarray(ids) for ids in program._batch(3))
    assert inputs.shape == targets.shape == (2, 4, 2 * WIDTH)
    for read, asked in zip(inputs.reshape(-1, 2 * WIDTH), targets.reshape(-1, 2 * WIDTH)):
        told = data.tokenizer.decode(read)
        line = [told[: i + 1].rpartition("\n")[2] for i in range(len(told))]
        is_known = asked[:-1] >= 0
        assert (asked[:-1] == read[1:])[is_known].all()
        of_answer = ["=" in begun and after != "\n" for begun, after in zip(line, told[1:])]
        begins = told.find("\n")  # the first line may be a part of one
        assert is_known[begins:].tolist() == of_answer[begins:] and any(of_answer)
    known = jnp.array([[3, -1, 0]])
    losses, slope = jax.value_and_grad(lambda x: mean_of_known(losses_of(x, known), known))(
        jnp.arange(12.0).reshape(1, 3, 4)
    )
    alone = losses_of(jnp.arange(12.0).reshape(1, 3, 4), jnp.array([[3, 0, 0]]))
    assert losses == pytest.approx(float(alone[0, 0] + alone[0, 2]) / 2, rel=1e-6)
    assert np.isfinite(slope).all() and not slope[0, 1].any() and slope[0, 0].any()
    assert mean_of_known(jnp.array([jnp.nan]), jnp.array([-1])) == 0


def test_the_accuracy_is_that_of_the_likeliest_tokens(tmp_path):
    """Beside a loop over problems, one at a time; and so is what the curve says at the end."""
    run = with_optimizer(answering(steps=40), learning_rate=3e-2)
    outcome = train(run, tmp_path / "run")
    split, model, data = open_data(run)["valid"], outcome.model, open_data(run)
    found = evaluate(model, split, length=WIDTH, batch_size=4, answers_only=True)
    text, right, losses = data.tokenizer.decode(split.ids), [], []
    problems = np.asarray(split.ids).reshape(-1, WIDTH).astype(np.int32)
    every = np.asarray(model.head(final_state(model, jnp.asarray(problems), None, None)), np.float64)
    for start, ids, logits in zip(range(0, len(text), WIDTH), problems, every, strict=True):
        first = text[start : start + WIDTH].index("=") + 1
        places = range(first, text.index("\n", start) - start)
        right.append([logits[i - 1].argmax() == ids[i] for i in places])
        losses += [np.log(np.exp(logits[i - 1]).sum()) - logits[i - 1, ids[i]] for i in places]
    assert found.tokens == len(losses) and found.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert found.bits_per_byte == pytest.approx(found.loss / np.log(2))
    assert found.accuracy.whole == np.mean([all(one) for one in right])
    assert found.accuracy.tokens == pytest.approx(np.mean([hit for one in right for hit in one]))
    assert found.accuracy.answers == len(right) == 20 and 0 < found.accuracy.tokens < 1, (
        "neither none nor all"
    )
    final = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert final["kind"] == "final" and final["accuracy"]["answers"] == 20
    assert final["evaluated_tokens"] == len(losses)


def test_a_text_without_answers_is_refused(tmp_path):
    run = tiny_run(write_text(tmp_path / "text.txt"), answers_only=True)
    with pytest.raises(DataError, match="no marked answers; use hops or addition"):
        train(run, tmp_path / "run")
    with pytest.raises(DataError, match="no marked answers"):
        answer_mask(open_data(run)["valid"])
    with pytest.raises(ConfigError, match="answers_only: taught is 0.5"):
        answering(depths=(1, 2), taught=0.5)

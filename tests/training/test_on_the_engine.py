"""What training measured is what the head does in the loop, on the engine that serves it."""

from __future__ import annotations

import pytest

from tests.engine_fixtures import write_byte_tokenizer
from tests.training.conftest import write_model
from toolkit.backends.runtime import open_runtime
from toolkit.execute import build
from toolkit.plan import make_plan
from toolkit.recipe.schema import Recipe
from toolkit.registry import HEAD_TRAINERS
from toolkit.speculation.request import Request
from toolkit.store import Store
from toolkit.training.batches import TrainingData
from toolkit.training.draft import DraftModel
from toolkit.training.fit import Fit, FitOptions, greedy_acceptance
from toolkit.training.head import HeadOptions, draft_ids
from toolkit.training.target import read_target

OUTPUT = 40  # tokens


def recipe(model, speculation):
    return Recipe.model_validate(
        {
            "name": "tiny",
            "target": {"checkpoint": str(model), "dtype": "float32"},
            "speculation": speculation,
            "engine": {"max_batch_size": 4, "max_input_len": 100, "max_seq_len": 160},
        }
    )


@pytest.mark.parametrize(
    ("name", "vocab", "steps", "speculation"),
    [
        ("eagle3", 160, 25, {"drafter": "eagle3", "max_draft_len": 3}),
        (
            "medusa",
            160,
            60,
            {"drafter": "medusa", "max_draft_len": 3, "medusa_choices": [[0], [0, 0], [0, 0, 0]]},
        ),
    ],
)
def test_the_loop_takes_as_many_steps_as_was_measured(
    name, vocab, steps, speculation, tiny, data_dir, tmp_path
):
    target = read_target(tiny.checkpoint_dir)
    data, heldout = TrainingData(data_dir, "train"), TrainingData(data_dir, "heldout")
    ids = draft_ids(data.token_counts(target.settings.vocab_size), vocab)
    kind = HEAD_TRAINERS[name](target, HeadOptions(heads=3), ids)
    options = FitOptions(minutes=60, max_steps=steps, batch=16, learning_rate=5e-3, warmup_steps=5)
    run = Fit(kind, data, heldout, tmp_path / "head", options)
    run.run()
    whole = [s for s in heldout.samples if s.greedy and len(s.output) == OUTPUT][:4]
    measured = greedy_acceptance(kind, run.params, whole)

    heads = {"heads": {"checkpoint": str(tmp_path / "head")}}
    taken = steps_taken(tmp_path, {**heads, **speculation}, whole)
    assert measured.steps < 4 * (OUTPUT - 1)  # something was accepted
    assert taken == pytest.approx(measured.steps, abs=2)  # stored states are bfloat16


def test_a_draft_of_a_reduced_vocabulary_does_too(tiny, data_dir, tmp_path):
    target = read_target(tiny.checkpoint_dir)
    data, heldout = TrainingData(data_dir, "train"), TrainingData(data_dir, "heldout")
    ids = draft_ids(data.token_counts(target.settings.vocab_size), 60)
    kind = DraftModel(target, HeadOptions(layers=(0, 7), reduced=True), ids)
    options = FitOptions(minutes=60, max_steps=25, batch=16, learning_rate=2e-3, warmup_steps=5)
    run = Fit(kind, data, heldout, tmp_path / "draft", options)
    run.run()
    write_byte_tokenizer(tmp_path / "draft")
    whole = [s for s in heldout.samples if s.greedy and len(s.output) == OUTPUT][:4]
    measured = greedy_acceptance(kind, run.params, whole)
    said = set(run.kind.ids.tolist())
    assert not said.issuperset(token for sample in whole for token in sample.output.tolist())

    draft = {"checkpoint": str(tmp_path / "draft"), "dtype": "float32"}
    words = {"drafter": "draft_target", "max_draft_len": 3, "draft": draft}
    taken = steps_taken(tmp_path, words, whole)
    assert measured.steps < 4 * (OUTPUT - 1)
    assert taken == pytest.approx(measured.steps, abs=2)


def steps_taken(tmp_path, speculation, samples):
    """Verify steps of the loop for these outputs, which it must give again."""
    store = Store(tmp_path / "store")
    model = write_model(tmp_path / "model")
    built = build(make_plan(recipe(model, speculation), store), store)
    loop = open_runtime(built, threads=1).loop()
    outputs = loop.generate(
        [Request(tuple(s.tokens[: s.prompt_length].tolist()), max_tokens=OUTPUT) for s in samples]
    )
    for sample, output in zip(samples, outputs, strict=True):
        assert list(output.tokens) == sample.output.tolist()
    return sum(output.stats.verify_steps for output in outputs)

"""A head learns, is interrupted and goes on, and what it leaves behind is the published layout."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.training.conftest import LAYERS
from toolkit.checkpoint.directory import DirectorySource
from toolkit.checkpoint.drafts.eagle3 import Eagle3Form, plan_eagle3
from toolkit.checkpoint.drafts.target import converted_target_facts
from toolkit.checkpoint.heads.head import HeadSpec
from toolkit.checkpoint.heads.source import open_heads
from toolkit.checkpoint.read import Checkpoint
from toolkit.errors import InputError, RunError
from toolkit.registry import HEAD_TRAINERS, HEADS
from toolkit.training.batches import TrainingData
from toolkit.training.draft import DraftModel, layer_problems
from toolkit.training.fit import STATE, Fit, FitOptions, write_head
from toolkit.training.head import HeadOptions, draft_ids

FAST = FitOptions(minutes=60, max_steps=40, batch=16, learning_rate=5e-3, warmup_steps=5)


def fit(target, splits, out, name="eagle3", options=FAST, vocab=160, **head):
    kind = DraftModel if name == "draft" else HEAD_TRAINERS[name]
    ids = draft_ids(splits[0].token_counts(target.settings.vocab_size), vocab)
    return Fit(kind(target, HeadOptions(**head), ids), *splits, out, options)


def test_eagle3_learns_and_its_layout_is_read_back(target, tiny, splits, tmp_path):
    run = fit(target, splits, tmp_path)
    before = run.measure().acceptance_length
    after = run.run()
    assert before < 1.1
    assert after.acceptance_length > before + 0.25
    plan = plan_eagle3(
        DirectorySource(tmp_path, "head"),
        converted_target_facts(Checkpoint(tiny.checkpoint_dir).config),
        Eagle3Form(),
    )
    assert plan.problems == ()
    assert plan.captured_layers == (1, LAYERS // 2 - 1, LAYERS - 4)
    assert set(plan.tensors) >= {"midlayer.hidden_norm.weight", "d2t", "lm_head.weight"}
    assert plan.notes == ()
    lines = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert lines[-1]["acceptance_length"] == after.acceptance_length


@pytest.mark.parametrize(("name", "options"), [("eagle", {}), ("medusa", {"head_layers": 2})])
def test_the_other_heads_learn_too(name, options, target, splits, tmp_path):
    vocab = None if name == "eagle" else 160
    run = fit(target, splits, tmp_path, name, vocab=vocab, **options)
    before = run.measure().conditional[0]
    run.run()
    assert run.measure().conditional[0] > before + 0.1


@pytest.mark.parametrize("name", ["eagle", "medusa"])
def test_layouts_of_engine_heads_are_read_back(name, target, tiny, splits, tmp_path):
    run = fit(target, splits, tmp_path, name, vocab=None, heads=2, full_lm_head=True)
    write_head(run.kind, run.params, tmp_path)
    spec = HeadSpec(kind=name, checkpoint=str(tmp_path))
    plan = HEADS[name].plan(open_heads(spec), Checkpoint(tiny.checkpoint_dir).config, spec)
    assert plan.problems == ()
    assert plan.dropped == frozenset()
    if name == "medusa":
        assert plan.config["num_medusa_heads"] == 2


def test_layers_0_names(target, tiny, splits, tmp_path):
    run = fit(target, splits, tmp_path, layer_names="layers.0.")
    write_head(run.kind, run.params, tmp_path)
    source = DirectorySource(tmp_path, "head")
    assert "layers.0.hidden_norm.weight" in source.tensors
    facts = converted_target_facts(Checkpoint(tiny.checkpoint_dir).config)
    assert plan_eagle3(source, facts, Eagle3Form()).problems == ()


def test_medusa_that_shares_lm_head_is_small(target, splits, tmp_path):
    run = fit(target, splits, tmp_path, "medusa", heads=2)
    write_head(run.kind, run.params, tmp_path)
    found = DirectorySource(tmp_path, "head")
    assert set(found.tensors) == {
        "0.0.linear.weight", "0.0.linear.bias", "1.0.linear.weight", "1.0.linear.bias", "d2t",
    }  # fmt: skip
    ids = np.arange(160) + np.asarray(found.read("d2t"))
    assert ids.tolist() == run.kind.ids.tolist()


def test_bfloat16_learns_about_the_same(target, splits, tmp_path):
    runs = {
        half: fit(target, splits, tmp_path / str(half), options=options)
        for half in (False, True)
        if (options := FitOptions(**{**vars(FAST), "max_steps": 6, "bfloat16": half}))
    }
    losses = [run.run().loss for run in runs.values()]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert all(p.dtype == torch.float32 for p in runs[True].params.values())


class TestResume:
    def test_weights_moments_and_place_come_back(self, target, splits, tmp_path):
        first = fit(target, splits, tmp_path, options=FitOptions(**{**vars(FAST), "max_steps": 10}))
        first.run()
        second = fit(target, splits, tmp_path)
        assert second.progress.step == 10
        assert second.progress.best == first.progress.best
        for name, tensor in first.params.items():
            assert torch.equal(second.params[name], tensor.detach())
        assert second.kind.ids.tolist() == first.kind.ids.tolist()
        second._ready()
        for name in ("fc.weight", "midlayer.mlp.up_proj.weight"):
            ours = second._optimizer.state[second.params[name]]
            theirs = first._optimizer.state[first.params[name]]
            assert torch.equal(ours["exp_avg_sq"], theirs["exp_avg_sq"])
            assert float(ours["step"]) == 10
        assert second.run().step == 40

    def test_a_damaged_state_says_so(self, target, splits, tmp_path):
        (tmp_path / STATE).write_bytes(b"nonsense")
        with pytest.raises(InputError, match=r"state\.safetensors"):
            fit(target, splits, tmp_path)


def test_new_shards_join_while_training_runs(data_dir, tmp_path):
    first, second = (data_dir / f"train-0000{n}.safetensors" for n in (0, 1))
    (tmp_path / first.name).write_bytes(first.read_bytes())
    data = TrainingData(tmp_path, "train")
    groups = data.groups(4, 0, 0)
    next(groups)
    (tmp_path / second.name).write_bytes(second.read_bytes())
    data.refresh()
    fresh = [id(s) for s in data.samples[16:]]
    following = [id(s) for _ in range(4) for s in next(groups)]
    assert following == fresh
    assert len(data.samples) == 32


def test_out_of_memory_says_what_to_lower(target, splits, tmp_path, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    run = fit(target, splits, tmp_path)
    monkeypatch.setattr(run, "_step", full)
    with pytest.raises(RunError, match=r"lower --batch \(now 16\), --draft-vocab or"):
        run.run()


def test_other_errors_keep_their_traceback(target, splits, tmp_path, monkeypatch):
    def wrong(*_):
        raise RuntimeError("shapes do not fit")

    run = fit(target, splits, tmp_path)
    monkeypatch.setattr(run, "_step", wrong)
    with pytest.raises(RuntimeError, match="shapes"):
        run.run()


def test_patience_ends_a_run_that_gets_no_better(target, splits, tmp_path):
    options = FitOptions(
        minutes=60, max_steps=500, batch=16, learning_rate=0.0, eval_minutes=1e-6, patience=3
    )
    run = fit(target, splits, tmp_path, options=options)
    run.progress.best = 9.0  # no head reaches it
    assert run.run().step == 3
    assert not (tmp_path / "model.safetensors").exists()


class TestDraft:
    def test_learns_and_converts_like_any_model(self, target, tiny, splits, tmp_path):
        from toolkit.checkpoint.convert import convert
        from toolkit.checkpoint.source import open_source
        from toolkit.recipe.schema import ModelSpec

        run = fit(target, splits, tmp_path / "draft", "draft", layers=(0, 7))
        run.run()
        spec = ModelSpec.model_validate({"checkpoint": str(tmp_path / "draft")})
        convert(open_source(str(tmp_path / "draft")), tmp_path / "checkpoint", spec)
        found = Checkpoint(tmp_path / "checkpoint")
        assert found.config["num_hidden_layers"] == 2
        np.testing.assert_allclose(
            found.tensor("transformer.vocab_embedding.weight").astype(np.float32),
            target.embedding.numpy(),
            rtol=0.01,
        )

    def test_a_reduced_vocabulary_is_rows_of_lm_head_and_a_map(self, target, splits, tmp_path):
        run = fit(target, splits, tmp_path, "draft", vocab=60, layers=(0, 7), reduced=True)
        write_head(run.kind, run.params, tmp_path)
        found = DirectorySource(tmp_path, "draft")
        assert found.config["lm_head_rows"] == 60
        assert found.config["tie_word_embeddings"] is False
        ids = np.arange(60) + np.asarray(found.read("d2t"))
        assert ids.tolist() == run.kind.ids.tolist()
        np.testing.assert_array_equal(found.read("lm_head.weight"), target.lm_head[ids].numpy())
        assert found.tensors["model.embed_tokens.weight"].shape == target.embedding.shape

    def test_of_all_tokens_it_is_an_ordinary_model(self, target, splits, tmp_path):
        run = fit(target, splits, tmp_path, "draft", vocab=None, layers=(0, 7), reduced=True)
        write_head(run.kind, run.params, tmp_path)
        found = DirectorySource(tmp_path, "draft")
        assert "d2t" not in found.tensors
        assert "lm_head_rows" not in found.config

    @pytest.mark.parametrize(
        ("layers", "said"),
        [
            ((), "no layer is left"),
            ((0, 9), r"\[9\]: the target has layers 0 to 7"),
            ((0, 0), "names a layer twice"),
            (tuple(range(8)), "all of the target's layers"),
        ],
    )
    def test_a_wrong_subset(self, layers, said, target):
        with pytest.raises(InputError, match=said):
            DraftModel(target, HeadOptions(layers=layers), np.arange(10)).start()

    def test_all_problems_at_once(self):
        assert len(layer_problems((9, 9), 8)) == 2


def test_a_shallow_target_has_no_three_layers(target):
    from toolkit.training.eagle3 import layer_problem

    assert layer_problem(7) is None
    assert "at least 7" in str(layer_problem(6))

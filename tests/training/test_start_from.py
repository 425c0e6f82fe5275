"""Training that goes on from a published head: what it begins with is what that head does."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tests import tiny_heads
from tests.engine_fixtures import VOCAB_SIZE
from tests.tiny import HIDDEN, INTERMEDIATE
from toolkit.checkpoint.heads.source import open_head_files
from toolkit.errors import CheckpointError, InputError
from toolkit.registry import HEAD_TRAINERS
from toolkit.store import Store
from toolkit.training.draft import DraftModel
from toolkit.training.fit import Fit, FitOptions, write_head
from toolkit.training.head import HeadOptions, draft_ids
from toolkit.training.published import StartFrom, begin
from toolkit.training.session import TargetFiles, train

FAST = {"minutes": 60, "batch": 16, "learning_rate": 5e-3, "warmup_steps": 5}
LEARNT = {  # kind -> what a run of some steps is asked for
    "eagle3": (160, {}),
    "eagle": (None, {}),
    "medusa": (160, {"heads": 3, "head_layers": 2}),
    "medusa, lm_heads of its own": (None, {"heads": 2, "full_lm_head": True}),
}


@pytest.fixture(scope="module")
def learnt(target, splits, tmp_path_factory):
    """By kind: a head that learnt something, and what was accepted of it."""
    found = {}
    for name, (vocab, options) in LEARNT.items():
        out = tmp_path_factory.mktemp("learnt")
        ids = draft_ids(splits[0].token_counts(VOCAB_SIZE), vocab)
        kind = HEAD_TRAINERS[name.partition(",")[0]](target, HeadOptions(**options), ids)
        run = Fit(kind, *splits, out, FitOptions(**FAST, max_steps=15))
        run.run()
        write_head(kind, run.params, out)
        found[name] = out, run.measure()
    return found


def begun(target, splits, name, directory, out, **options):
    """A run that begins with the head in `directory`."""
    some = np.arange(0, VOCAB_SIZE, 2) if name != "eagle" else np.arange(VOCAB_SIZE)
    kind = HEAD_TRAINERS[name](target, HeadOptions(**options), some)
    start = StartFrom(str(directory), name)
    params, record = begin(kind, out, start, Store(out / "store"))
    return Fit(kind, *splits, out, FitOptions(**FAST, max_steps=3), params, record)


@pytest.mark.parametrize("name", LEARNT)
def test_step_0_accepts_what_the_head_accepts(name, learnt, target, splits, tmp_path):
    directory, accepted = learnt[name]
    run = begun(target, splits, name.partition(",")[0], directory, tmp_path)
    assert run.measure() == accepted
    run.run()
    first = json.loads((tmp_path / "curve.jsonl").read_text().splitlines()[0])
    assert first["step"] == 0
    assert first["loss"] is None
    assert first["acceptance_length"] == round(accepted.acceptance_length, 4) > 1.0
    assert run.progress.best >= accepted.acceptance_length


def test_what_is_written_first_is_the_head_itself(learnt, target, splits, tmp_path):
    for name, (directory, _) in learnt.items():
        out = tmp_path / name
        run = begun(target, splits, name.partition(",")[0], directory, out)
        write_head(run.kind, run.params, out)
        theirs, ours = (load_file(d / "model.safetensors") for d in (directory, out))
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            np.testing.assert_array_equal(ours[key], tensor)
        configs = [json.loads((d / "config.json").read_text()) for d in (directory, out)]
        assert {key: configs[1].get(key) for key in configs[0]} == configs[0]


def rewritten(directory, out, change, **config):
    """The same head in another file: `change` edits its tensors."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    out.mkdir()
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, out / "model.safetensors")
    words = json.loads((directory / "config.json").read_text()) | config
    (out / "config.json").write_text(json.dumps(words))
    return out


def wider_mlp(tensors):
    """32 more neurons that say nothing, and biases that add nothing."""
    for name in ("gate_proj", "up_proj"):
        weight = tensors[f"midlayer.mlp.{name}.weight"]
        tensors[f"midlayer.mlp.{name}.weight"] = np.pad(weight, ((0, 32), (0, 0)))
        tensors[f"midlayer.mlp.{name}.bias"] = np.zeros(len(weight) + 32, np.float32)
    down = tensors["midlayer.mlp.down_proj.weight"]
    tensors["midlayer.mlp.down_proj.weight"] = np.pad(down, ((0, 0), (0, 32)))
    tensors["midlayer.mlp.down_proj.bias"] = np.zeros(HIDDEN, np.float32)


def other_names_and_order(tensors):
    """ModelOpt's names, and draft ids that do not ascend."""
    for name in [n for n in tensors if n.startswith("midlayer.")]:
        tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)
    order = np.random.default_rng(0).permutation(len(tensors["d2t"]))
    ids = np.arange(len(order)) + tensors["d2t"]
    tensors["d2t"] = ids[order] - np.arange(len(order))
    tensors["lm_head.weight"] = tensors["lm_head.weight"][order]


def twice_as_wide(tensors, embedding):
    """Zeros beside every state. A norm then divides by a root mean square of half the mean."""
    names = {
        "fc.weight": ((0, HIDDEN), (0, 0)),
        "lm_head.weight": ((0, 0), (0, HIDDEN)),
        "midlayer.self_attn.o_proj.weight": ((0, HIDDEN), (0, 0)),
        "midlayer.mlp.down_proj.weight": ((0, HIDDEN), (0, 0)),
        "midlayer.mlp.gate_proj.weight": ((0, 0), (0, HIDDEN)),
        "midlayer.mlp.up_proj.weight": ((0, 0), (0, HIDDEN)),
    }
    for name, padding in names.items():
        tensors[name] = np.pad(tensors[name], padding)
    for name in [n for n in tensors if n.endswith("norm.weight")]:
        tensors[name] = np.pad(tensors[name], (0, HIDDEN)) / np.sqrt(np.float32(2))
    for name in ("q_proj", "k_proj", "v_proj"):  # [., embedding and state]
        weight = tensors[f"midlayer.self_attn.{name}.weight"]
        parts = (np.pad(part, ((0, 0), (0, HIDDEN))) for part in np.split(weight, 2, axis=1))
        tensors[f"midlayer.self_attn.{name}.weight"] = np.concatenate([*parts], 1)
    tensors["embed_tokens.weight"] = np.pad(embedding, ((0, 0), (0, HIDDEN)))


class TestHeadsOfOtherSizes:
    """The same function in other sizes accepts the same, and comes back in those sizes."""

    def check(self, directory, accepted, target, splits, out):
        run = begun(target, splits, "eagle3", directory, out)
        assert run.measure().accepted == accepted.accepted
        run.run()
        again = begun(target, splits, "eagle3", out, out.parent / "again")
        np.testing.assert_allclose(again.measure().acceptance_length, run.progress.best, atol=1e-4)
        return json.loads((out / "config.json").read_text())

    def test_mlp_and_biases(self, learnt, target, splits, tmp_path):
        directory, accepted = learnt["eagle3"]
        wide = rewritten(
            directory,
            tmp_path / "wide",
            wider_mlp,
            intermediate_size=INTERMEDIATE + 32,
            mlp_bias=True,
        )
        config = self.check(wide, accepted, target, splits, tmp_path / "out")
        assert config["intermediate_size"] == INTERMEDIATE + 32
        assert config["mlp_bias"] is True

    def test_names_and_order_of_the_draft_vocabulary(self, learnt, target, splits, tmp_path):
        directory, accepted = learnt["eagle3"]
        other = rewritten(directory, tmp_path / "other", other_names_and_order)
        self.check(other, accepted, target, splits, tmp_path / "out")

    def test_width(self, learnt, target, splits, tmp_path):
        directory, accepted = learnt["eagle3"]
        wide = rewritten(
            directory,
            tmp_path / "wide",
            lambda tensors: twice_as_wide(tensors, target.embedding.numpy()),
            hidden_size=2 * HIDDEN,
            target_hidden_size=HIDDEN,
        )
        config = self.check(wide, accepted, target, splits, tmp_path / "out")
        assert (config["hidden_size"], config["target_hidden_size"]) == (2 * HIDDEN, HIDDEN)


class TestResume:
    def test_goes_on_from_its_own_state_even_when_the_head_is_gone(
        self, learnt, tiny, data_dir, tmp_path
    ):
        head = shutil.copytree(learnt["medusa"][0], tmp_path / "head")
        out, files = (
            tmp_path / "out",
            TargetFiles(
                checkpoint_digest="", checkpoint_dir=tiny.checkpoint_dir, tokenizer_dir=tmp_path
            ),
        )
        lines = []

        def go_on(steps, start):
            return train(
                HEAD_TRAINERS["medusa"], files, data_dir, out, HeadOptions(),
                FitOptions(**FAST, max_steps=steps), lines.append,
                start=start, store=Store(tmp_path / "store"),
            )  # fmt: skip

        first = go_on(3, StartFrom(str(head), "medusa"))
        assert [line.step for line in lines] == [0, 3]
        assert first["started_from"]["checkpoint"] == str(head)
        assert first["started_from"]["files"].keys() == {"model.safetensors", "config.json"}
        # Three heads of two layers each, which nobody asked for but the head.
        assert (first["head"]["heads"], first["head"]["head_layers"]) == (3, 2)
        assert first["fit"]["depths"] == (0.0, 0.0, 0.0)
        shutil.rmtree(head)
        starts = (StartFrom(str(head), "medusa"), StartFrom("/another/one", "medusa"), None)
        for i, start in enumerate(starts):
            lines.clear()
            assert go_on(4 + i, start)["started_from"] == first["started_from"]
            assert [line.step for line in lines] == [4 + i]

    def test_weights_are_those_of_the_state(self, learnt, target, splits, tmp_path):
        run = begun(target, splits, "eagle3", learnt["eagle3"][0], tmp_path)
        run.run()
        again = begun(target, splits, "eagle3", learnt["eagle3"][0], tmp_path)
        assert again.progress.step == 3
        for name, weight in run.params.items():
            assert torch.equal(again.params[name], weight.detach())


class TestRefused:
    def problems(self, target, name, directory, **options):
        kind = HEAD_TRAINERS[name](target, HeadOptions(**options), np.arange(10))
        with pytest.raises(CheckpointError) as raised:
            kind.begin_from(open_head_files(str(directory), None))
        return raised.value.problems

    def test_everything_at_once(self, learnt, target, tmp_path):
        def change(tensors):
            tensors["norm.weight"] = tensors["norm.weight"][:-1]
            del tensors["midlayer.mlp.up_proj.weight"]

        wrong = rewritten(
            learnt["eagle3"][0],
            tmp_path / "wrong",
            change,
            hidden_act="gelu",
            eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 2, 4]},
        )
        found = self.problems(target, "eagle3", wrong, draft_vocab=100)
        text = "\n".join(found)
        assert "norm.weight: has shape [63], expected [64]" in text
        assert "midlayer.mlp.up_proj.weight: missing; expected shape [128, 64]" in text
        assert "layer_ids is [0, 2, 4]; training data hold the states of [1, 3, 4]" in text
        assert "hidden_act is gelu; training computes silu" in text
        assert "--draft-vocab 100, but the head drafts 160 tokens" in text
        assert len(found) == 5

    def test_medusa_heads_of_other_numbers(self, learnt, target):
        found = self.problems(
            target, "medusa", learnt["medusa"][0], heads=4, head_layers=2, draft_vocab=8
        )
        assert found == [
            "--heads 4, but the head has 3; leave --heads out",
            "--draft-vocab 8, but the head drafts 160 tokens and goes on with them; leave "
            "--draft-vocab out",
        ]

    def test_what_says_the_same_is_fine(self, learnt, target, splits, tmp_path):
        directory, accepted = learnt["medusa"]
        run = begun(
            target, splits, "medusa", directory, tmp_path, heads=3, head_layers=2, draft_vocab=160
        )
        assert run.measure() == accepted

    def test_a_head_of_two_layers(self, target, tmp_path):
        tensors = tiny_heads.eagle(bias=False)
        second = {
            name.replace("layers.0.", "layers.1."): tensor
            for name, tensor in tensors.items()
            if name.startswith("layers.0.")
        }
        second["layers.1.input_layernorm.weight"] = tensors[
            "layers.0.post_attention_layernorm.weight"
        ]
        tensors["embed_tokens.weight"] = np.zeros((VOCAB_SIZE, HIDDEN), np.float16)
        config = tiny_heads.eagle_config(bias=False, vocab_size=VOCAB_SIZE, num_hidden_layers=2)
        tiny_heads.write_heads(tmp_path / "head", tensors | second, config)
        assert self.problems(target, "eagle", tmp_path / "head") == [
            "config.json: num_hidden_layers is 2; training knows one layer"
        ]

    def test_another_kind_of_head(self, learnt, target):
        assert "is an EAGLE-3 head" in str(self.problems(target, "eagle", learnt["eagle3"][0]))
        [said] = self.problems(target, "eagle3", learnt["eagle"][0])
        assert "an EAGLE-1 or EAGLE-2 head" in said
        found = self.problems(target, "medusa", learnt["eagle3"][0])
        assert found == ["holds no Medusa head: no tensor is named like 0.0.linear.weight"]

    def test_a_draft_model_begins_with_layers(self, learnt, target, tmp_path):
        kind = DraftModel(target, HeadOptions(layers=(0,)), np.arange(10))
        start = StartFrom(str(learnt["eagle3"][0]), "eagle3")
        with pytest.raises(InputError, match="begins with the target's own layers"):
            begin(kind, tmp_path, start, Store(tmp_path / "store"))

"""Effective sizes against what the real trtllm-build front end wrote (tests/golden)."""

import json

import pytest

from tests.engine.trtllm.golden_flags import GOLDEN
from toolkit.engine.trtllm.limits import effective_limits
from toolkit.recipe.release import release

SIZES = {"max_batch_size": 4, "max_input_len": 128, "max_seq_len": 200}
FIELDS = (
    "max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "opt_num_tokens",
    "max_beam_width", "max_draft_len",
)  # fmt: skip


def spec(mode, max_draft_len):
    return {**SIZES, "speculative_decoding_mode": mode, "max_draft_len": max_draft_len}


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())["config"]


# The command lines that made the golden engines, as far as sizes go.
CASES = {
    "engine016_draft": SIZES,
    "engine016_dtarget": spec("draft_tokens_external", 10),
    "engine016_medusa": spec("medusa", 63),
    "engine016_eagle": spec("eagle", 63),
    "engine016_redrafter": spec("explicit_draft_tokens", 20),
    "engine016_look": spec("lookahead_decoding", 83),
    "engine016_lk0": spec("lookahead_decoding", 0),
    "engine016_medusa_nomode": SIZES,
    "engine016_kvcont": spec("draft_tokens_external", 10),
    "engine016_bigbs": {"max_batch_size": 256, "max_num_tokens": 2048, **{
        "speculative_decoding_mode": "medusa", "max_draft_len": 63}},
    "engine016_pp2": SIZES,
    "engine12like_target": spec("draft_tokens_external", 10),
    "engine12like_eagle": spec("eagle", 63),
    "engine12like_medusa": spec("medusa", 31),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sizes_equal_those_of_the_golden_engine(name):
    config = golden(name)
    made = effective_limits(CASES[name], release(config["version"]), config["pretrained_config"])
    wanted = config["build_config"]
    assert {field: getattr(made, field) for field in FIELDS} == {f: wanted[f] for f in FIELDS}
    assert made.mode == wanted["speculative_decoding_mode"]


@pytest.mark.parametrize(
    ("name", "max_seq_len"),
    [
        ("engine016_dtarget", 210),  # 200 + 10
        ("engine016_medusa", 263),  # 200 + 63
        ("engine016_eagle", 267),  # 200 + 63 + 4 layers
        ("engine016_redrafter", 220),  # 200 + 4 x 5
        ("engine016_look", 283),  # 200 + 83
    ],
)
def test_a_mode_lengthens_the_sequence(name, max_seq_len):
    config = golden(name)
    made = effective_limits(CASES[name], (0, 16), config["pretrained_config"])
    assert made.max_seq_len == max_seq_len
    assert f"max_seq_len 200 becomes {max_seq_len}" in made.changes(CASES[name])


def test_max_num_tokens_holds_one_verify_step_of_a_full_batch():
    flags = {"max_batch_size": 256, "max_num_tokens": 2048, "max_seq_len": 4096}
    flags |= {"speculative_decoding_mode": "medusa", "max_draft_len": 63}
    assert effective_limits(flags, (1, 2), {}).max_num_tokens == 256 * 64


def test_0_16_takes_max_draft_len_from_the_checkpoint_and_later_releases_from_the_command():
    stored = {"max_draft_len": 63, "num_medusa_heads": 4}
    assert effective_limits(spec("medusa", 31), (0, 16), stored).max_draft_len == 63
    assert effective_limits(spec("medusa", 31), (1, 2), stored).max_draft_len == 31
    assert effective_limits(spec("medusa", 0), (1, 2), stored).max_draft_len == 63


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        (None, 8192),
        ({"type": "linear", "factor": 2.0}, 16384),
        ({"rope_type": "llama3", "factor": 8.0}, 8192),
        ({"type": "longrope", "factor": 4.0}, 8192),
    ],
)
def test_without_a_length_the_model_decides(scaling, longest):
    pretrained = {"max_position_embeddings": 8192, "rotary_scaling": scaling}
    flags = {"max_batch_size": 1, "max_input_len": 64}
    assert effective_limits(flags, (1, 2), pretrained).max_seq_len == longest
    assert effective_limits(flags, (1, 2), {}).max_seq_len == 2048

"""The flag tables against the golden ones, and what is said about a wrong flag."""

import pytest

from tests.engine.trtllm.golden_flags import RELEASES, golden_flags
from toolkit.engine.trtllm.flags import (
    TABLES,
    flag_problems,
    release_problem,
    table,
    table_name,
    with_default,
)
from toolkit.recipe.release import release


def problems(version="1.2.1", **flags):
    return [text for _, text in flag_problems(flags, release(version))]


def as_golden(flag):
    """(default, choices, takes a value), in the words of the golden dump."""
    return (
        None if flag.default is None else str(flag.default),
        list(flag.choices) or None,
        flag.kind != "on",
    )


@pytest.mark.parametrize("version", ["0.16.0", "1.2.1"])
def test_tables_equal_the_golden_ones(version):
    ours, golden = table(release(version)), golden_flags(version)
    assert set(ours) == set(golden)
    for name, flag in ours.items():
        row = golden[name]
        default, choices, takes_value = as_golden(flag)
        assert [f"--{name}", *(f"--{alias}" for alias in flag.aliases)] == row["flags"]
        assert takes_value == (row["action"] == "_StoreAction"), name
        assert default == (None if row["default"] == "==SUPPRESS==" else row["default"]), name
        if name != "kv_cache_type":  # parsed by a type, not from choices
            assert choices == row["choices"], name
        assert (flag.kind == "int") == (row["type"] == "int"), name


def test_every_release_between_the_oldest_and_the_newest_has_a_table():
    used = {
        number: table_name(number) for number in [(0, 16), (0, 17), (0, 21), (1, 0), (1, 1), (1, 2)]
    }
    assert used == {
        (0, 16): "0.16",
        (0, 17): "0.20",
        (0, 21): "0.20",
        (1, 0): "1.0",
        (1, 1): "1.0",
        (1, 2): "1.2",
    }
    assert set(TABLES) == {"0.16", "0.20", "1.0", "1.2"}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.2.1", (1, 2)),
        ("0.16.0.dev2024121000", (0, 16)),
        ("1.1.0rc6", (1, 1)),
        ("v0.20", (0, 20)),
        ("latest", None),
        ("1", None),
        ("1.2.1; rm -rf", None),
    ],
)
def test_releases_compare_by_their_first_two_numbers(text, number):
    assert release(text) == number


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("0.15.0", "from TensorRT-LLM 0.16 to 1.2"),
        ("1.3.0", "the engine flow ended with TensorRT-LLM 1.2"),
        ("newest", "not a release number"),
    ],
)
def test_releases_without_engines_are_refused(version, says):
    assert says in release_problem(release(version), version)


@pytest.mark.parametrize("version", RELEASES)
def test_supported_releases_are_not_refused(version):
    assert release_problem(release(version), version) is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"gemm_plugn": "auto"}, "has no --gemm_plugn; did you mean 'gemm_plugin'?"),
        ({"max_output_len": 100}, "set engine.max_seq_len: prompt plus output"),
        ({"auto_parallel": 2}, "has no --auto_parallel; known in 0.16, 0.20, 1.0"),
        ({"--gemm_plugin": "auto"}, "write it without dashes: gemm_plugin"),
        ({"max_decoder_seq_len": 9}, "write it as max_seq_len"),
        ({"gemm_plugin": "float8"}, "'float8'; expected one of auto, float16"),
        ({"context_fmha": True}, "True; expected one of enable, disable"),
        ({"tokens_per_block": "64"}, "'64'; expected a whole number"),
        ({"tokens_per_block": True}, "True; expected a whole number"),
        ({"strip_plan": "enable"}, "'enable'; expected true or false"),
        ({"lora_dir": ""}, "expected text"),
    ],
    ids=str,
)
def test_what_the_parser_would_refuse_is_said_before(flags, says):
    assert [says in text for text in problems(**flags)] == [True]


def test_nvfp4_came_after_0_16():
    assert problems("0.16.0", gemm_plugin="nvfp4") != []
    assert problems("1.2.1", gemm_plugin="nvfp4") == []


def test_defaults_changed_between_releases():
    assert with_default({}, "use_paged_context_fmha", (0, 16)) == "disable"
    assert with_default({}, "use_paged_context_fmha", (0, 20)) == "enable"
    assert with_default({}, "tokens_per_block", (0, 16)) == 64
    assert with_default({}, "tokens_per_block", (1, 2)) == 32
    assert with_default({"tokens_per_block": 128}, "tokens_per_block", (1, 2)) == 128

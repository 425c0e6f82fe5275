"""Engine directories from elsewhere: whole ones are read, half ones refused with every reason."""

import json

import pytest

from tests.engine.trtllm.golden_flags import GOLDEN
from toolkit.engine.trtllm.directory import read_engine
from toolkit.errors import InputError


@pytest.fixture
def engine(tmp_path):
    def write(golden="engine016_eagle_tp2", **changes):
        stored = json.loads((GOLDEN / f"{golden}.json").read_text())
        config = stored["config"]
        config["build_config"] |= changes
        for name in stored["files"]:
            (tmp_path / name).write_bytes(b"ftrt")
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("golden", "mode", "drafted", "reuse"),
    [
        ("engine016_dtarget", "draft_tokens_external", 10, True),
        ("engine016_medusa", "medusa", 63, False),
        ("engine016_draft", None, 0, True),
        ("engine016_look", "lookahead_decoding", 83, False),
        ("engine12like_eagle", "eagle", 63, True),
    ],
)
def test_golden_engines_are_whole(golden, mode, drafted, reuse, engine):
    found = read_engine(engine(golden))
    assert (found.mode, found.max_draft_len, found.block_reuse) == (mode, drafted, reuse)
    assert found.world_size == 1


def test_every_problem_is_said(engine):
    directory = engine(max_draft_len=-1, speculative_decoding_mode=3, max_seq_len="many")
    (directory / "rank0.engine").write_bytes(b"")
    (directory / "rank1.engine").unlink()
    (directory / "rank2.engine").write_bytes(b"ftrt")
    with pytest.raises(InputError) as error:
        read_engine(directory)
    for part in (
        "max_seq_len is 'many'",
        "max_draft_len is -1",
        "speculative_decoding_mode is 3, not 1, 2, 4, 8, 16, 32",
        "rank0.engine: empty",
        "rank1.engine: missing; world_size is 2",
        "rank2.engine: does not belong to world_size 2",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no config.json"),
        ("{", "not readable"),
        ("[]", "expected a JSON object"),
        ("{}", "version is missing"),
        ('{"cpu": {}}', "an engine of backend cpu"),
        ('{"version": "1", "pretrained_config": {}, "build_config": {}}', "world_size is None"),
    ],
)
def test_what_is_no_engine_is_refused(text, says, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=says):
        read_engine(tmp_path)

"""Generated outputs are the target's own, and an interrupted run goes on where it was."""

from __future__ import annotations

import numpy as np
import pytest

from tests.training.conftest import PLAN, captured, write_prompts
from toolkit.errors import CheckpointError
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.interfaces import Step
from toolkit.speculation.loop import SpeculativeLoop
from toolkit.speculation.request import Request
from toolkit.training.generate import Generator
from toolkit.training.prompts import load_prompt_book
from toolkit.training.shards import read_shard, write_shard


@pytest.fixture(scope="module")
def shard(data_dir):
    return read_shard(PLAN.shard(data_dir, 1))


def test_half_greedy_and_ended_as_a_loop_would_end_them(tiny, shard):
    assert [s.greedy for s in shard] == [True, False] * 8
    stop = frozenset(tiny.tokenizer.eos_ids)
    for sample in shard[:6:2]:
        loop = SpeculativeLoop(tiny.model, None, Fixed(0))
        request = Request(
            prompt=tuple(sample.tokens[: sample.prompt_length].tolist()),
            max_tokens=PLAN.max_tokens,
            stop_tokens=stop,
        )
        [output] = loop.generate([request])
        made = sample.output.tolist()
        assert made[: len(output.tokens)] == list(output.tokens)
        assert len(made) - len(output.tokens) in (0, 1)  # the stop token itself is kept
    assert all(len(s.output) <= PLAN.max_tokens for s in shard)


def test_sampled_outputs_of_one_prompt_number_are_the_same_every_time(tiny, shard, tmp_path):
    book = load_prompt_book(write_prompts(tmp_path / "prompts"))
    Generator(tiny.model, tiny.tokenizer, book, PLAN).fill(tmp_path, [1])
    again = read_shard(PLAN.shard(tmp_path, 1))
    assert [s.tokens.tolist() for s in again] == [s.tokens.tolist() for s in shard]


def test_states_are_those_of_one_pass_over_the_text(tiny, shard):
    for sample in shard[:3]:
        seq = tiny.model.open()
        tokens = sample.tokens[:-1].astype(np.int64)
        [output] = tiny.model.forward([Step(seq, tokens, hidden=True)])
        tiny.model.close(seq)
        kept = sample.hidden.astype(np.float32)
        assert kept.shape == (len(sample.tokens), 64 * len(captured(8)))
        np.testing.assert_allclose(kept[:-1], output.hidden, rtol=0.01, atol=0.01)  # bfloat16
        assert not kept[-1].any()  # of the last token, which the target never read


def test_only_what_is_missing_is_made_again(tiny, data_dir, shard, tmp_path):
    for number in (0, 1, 2):
        path = PLAN.shard(data_dir, number)
        (tmp_path / path.name).write_bytes(path.read_bytes())
    PLAN.shard(tmp_path, 1).unlink()
    before = PLAN.shard(tmp_path, 0).stat().st_mtime_ns
    said = []
    book = load_prompt_book(write_prompts(tmp_path / "prompts"))
    generator = Generator(tiny.model, tiny.tokenizer, book, PLAN)
    generator.fill(tmp_path, range(3), lambda number, tokens: said.append(number))
    assert said == [1]
    assert PLAN.shard(tmp_path, 0).stat().st_mtime_ns == before
    found = read_shard(PLAN.shard(tmp_path, 1))
    assert [s.tokens.tolist() for s in found] == [s.tokens.tolist() for s in shard]


def test_interrupted_in_the_middle_of_a_shard(tiny, tmp_path):
    """Nothing of the unfinished shard is on disk, and the next run makes it whole."""

    class KilledError(Exception):
        pass

    class Stops:
        """The target, until its twelfth step."""

        def __init__(self) -> None:
            self.steps = 0

        def __getattr__(self, name):
            return getattr(tiny.model, name)

        def forward(self, steps):
            self.steps += 1
            if self.steps == 12:
                raise KilledError
            return tiny.model.forward(steps)

    book = load_prompt_book(write_prompts(tmp_path / "prompts"))
    generator = Generator(Stops(), tiny.tokenizer, book, PLAN)
    with pytest.raises(KilledError):
        generator.fill(tmp_path / "data", [0])
    for running in generator._running:
        tiny.model.close(running.seq)
    assert list((tmp_path / "data").iterdir()) == []
    Generator(tiny.model, tiny.tokenizer, book, PLAN).fill(tmp_path / "data", [0])
    assert len(read_shard(PLAN.shard(tmp_path / "data", 0))) == PLAN.sequences


class TestShards:
    def test_come_back_as_they_were(self, shard, tmp_path):
        write_shard(tmp_path / "s.safetensors", shard)
        for found, wanted in zip(read_shard(tmp_path / "s.safetensors"), shard, strict=True):
            assert (found.tokens == wanted.tokens).all()
            assert (found.hidden == wanted.hidden).all()
            assert (found.prompt_length, found.greedy) == (wanted.prompt_length, wanted.greedy)

    def test_another_file_is_refused(self, tmp_path):
        from safetensors.numpy import save_file

        save_file({"x": np.zeros(3, np.float32)}, tmp_path / "s.safetensors")
        with pytest.raises(CheckpointError, match="not training data"):
            read_shard(tmp_path / "s.safetensors")

    def test_a_cut_file_is_refused(self, shard, tmp_path):
        path = tmp_path / "s.safetensors"
        write_shard(path, shard)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(CheckpointError, match="truncated"):
            read_shard(path)

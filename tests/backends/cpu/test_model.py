"""The paged engine: however tokens are fed, their logits are those of one plain pass."""

import numpy as np
import pytest

from tests.backends.cpu.conftest import build_tiny, tokens, whole
from toolkit.backends.cpu.backend import CpuBackend
from toolkit.errors import CapacityError, InputError
from toolkit.recipe.schema import EngineLimits
from toolkit.speculation.interfaces import Step

CLOSE = {"atol": 2e-5, "rtol": 0}


def feed(model, seq, text, **options):
    options.setdefault("rows", len(text))
    (output,) = model.forward([Step(seq, np.asarray(text, np.int64), **options)])
    return output


class TestCache:
    @pytest.mark.parametrize("cuts", [[1], [31, 32, 33], [64], list(range(1, 70))])
    def test_a_prompt_read_in_pieces_equals_one_read_whole(self, model, cuts):
        text = tokens(70)
        seq = model.open()
        pieces = [feed(model, seq, piece).logits for piece in np.split(text, cuts)]
        np.testing.assert_allclose(np.concatenate(pieces), whole(model, text), **CLOSE)

    def test_a_ragged_batch_equals_each_sequence_alone(self, model):
        """Four sequences with their own pasts bring 1, 7, 40 and 2 new tokens."""
        texts = [tokens(count, seed) for seed, count in enumerate((34, 7, 72, 130))]
        news = [1, 7, 40, 2]
        seqs = [model.open() for _ in texts]
        for seq, text, new in zip(seqs, texts, news, strict=True):
            if len(text) > new:
                feed(model, seq, text[:-new], rows=0)
        outputs = model.forward(
            [Step(s, t[-n:], rows=n) for s, t, n in zip(seqs, texts, news, strict=True)]
        )
        for text, new, output in zip(texts, news, outputs, strict=True):
            np.testing.assert_allclose(output.logits, whole(model, text)[-new:], **CLOSE)
        assert [model.length(seq) for seq in seqs] == [34, 7, 72, 130]

    def test_truncating_equals_never_having_written(self, model):
        text, wrong = tokens(60), tokens(40, seed=9)
        seq = model.open()
        feed(model, seq, text[:30])
        feed(model, seq, wrong)
        model.truncate(seq, 30)
        assert model.length(seq) == 30
        again = feed(model, seq, text[30:]).logits
        clean = model.open()
        feed(model, clean, text[:30])
        np.testing.assert_array_equal(again, feed(model, clean, text[30:]).logits)

    def test_truncating_to_nothing_starts_over(self, model):
        seq = model.open()
        feed(model, seq, tokens(50, seed=3))
        model.truncate(seq, 0)
        np.testing.assert_allclose(
            feed(model, seq, tokens(20)).logits, whole(model, tokens(20)), **CLOSE
        )

    def test_closing_gives_every_block_back(self, model):
        before = model.free_blocks
        for round_ in range(200):
            seqs = [model.open() for _ in range(4)]
            model.forward([Step(s, tokens(1 + 37 * (round_ % 3)), rows=0) for s in seqs])
            model.truncate(seqs[0], 0)
            for seq in seqs:
                model.close(seq)
        assert model.free_blocks == before

    def test_prompts_above_max_num_tokens_take_several_passes(self, tmp_path):
        limits = EngineLimits(max_batch_size=4, max_input_len=200, max_seq_len=256)
        small = limits.model_copy(update={"max_num_tokens": 16})
        model = CpuBackend().load(build_tiny(tmp_path, limits=small))
        texts = [tokens(50), tokens(3, seed=1), tokens(20, seed=2)]
        outputs = model.forward([Step(model.open(), t, rows=len(t), hidden=True) for t in texts])
        for text, output in zip(texts, outputs, strict=True):
            alone = model.open()
            single = feed(model, alone, text[:16]).logits
            np.testing.assert_allclose(output.logits[: len(single)], single, **CLOSE)
            model.close(alone)
            assert output.logits.shape == (len(text), model.vocab_size)
            assert output.hidden.shape == (len(text), 64)


# A tree of six nodes, by parent; -1 hangs on the last token of the text.
#        0        1        2 (children of the text)
#      3   4      5
PARENTS = [-1, -1, -1, 0, 0, 1]
NODES = [10, 20, 30, 40, 50, 60]


def path_to(node):
    path = []
    while node >= 0:
        path.insert(0, node)
        node = PARENTS[node]
    return path


def tree_step(seq, base):
    mask = np.zeros((len(NODES), len(NODES)), bool)
    for node in range(len(NODES)):
        mask[node, path_to(node)] = True
    positions = np.array([base + len(path_to(node)) - 1 for node in range(len(NODES))])
    return Step(seq, np.array(NODES), rows=len(NODES), positions=positions, mask=mask)


class TestTree:
    @pytest.mark.parametrize("length", [5, 30, 32, 61])
    def test_every_node_has_the_logits_of_its_own_chain(self, model, length):
        text = tokens(length)
        seq = model.open()
        feed(model, seq, text, rows=0)
        (output,) = model.forward([tree_step(seq, length)])
        for node in range(len(NODES)):
            chain = np.array([*text, *(NODES[n] for n in path_to(node))])
            np.testing.assert_allclose(output.logits[node], whole(model, chain)[-1], **CLOSE)

    def test_trees_and_chains_share_a_batch(self, model):
        text, other = tokens(40), tokens(33, seed=5)
        seqs = [model.open() for _ in range(3)]
        feed(model, seqs[0], other[:-3], rows=0)
        feed(model, seqs[1], text, rows=0)
        feed(model, seqs[2], other[:-1], rows=0)
        steps = [
            Step(seqs[0], other[-3:], rows=3),
            tree_step(seqs[1], 40),
            Step(seqs[2], other[-1:]),
        ]
        first, tree, last = model.forward(steps)
        np.testing.assert_allclose(first.logits, whole(model, other)[-3:], **CLOSE)
        np.testing.assert_allclose(last.logits, whole(model, other)[-1:], **CLOSE)
        chain = np.array([*text, 20, 60])
        np.testing.assert_allclose(tree.logits[5], whole(model, chain)[-1], **CLOSE)

    @pytest.mark.parametrize("length", [5, 29, 30, 31, 32, 61])
    @pytest.mark.parametrize("node", [0, 4, 5])
    def test_keeping_a_path_equals_having_fed_it_plainly(self, model, length, node):
        text = tokens(length)
        seq = model.open()
        feed(model, seq, text, rows=0)
        model.forward([tree_step(seq, length)])
        model.keep(seq, length, path_to(node))
        assert model.length(seq) == length + len(path_to(node))
        more = tokens(5, seed=7)
        after = feed(model, seq, more).logits
        plain = np.array([*text, *(NODES[n] for n in path_to(node)), *more])
        np.testing.assert_allclose(after, whole(model, plain)[-5:], **CLOSE)

    def test_keeping_nothing_is_truncating(self, model):
        seq = model.open()
        feed(model, seq, tokens(20), rows=0)
        model.forward([tree_step(seq, 20)])
        model.keep(seq, 20, [])
        assert model.length(seq) == 20

    def test_keep_works_on_bfloat16_blocks(self, tmp_path):
        model = CpuBackend().load(build_tiny(tmp_path, dtype="bfloat16"))
        text, more = tokens(30), tokens(4, seed=7)
        tree, plain = model.open(), model.open()
        feed(model, tree, text, rows=0)
        model.forward([tree_step(tree, 30)])
        model.keep(tree, 30, [1, 5])
        feed(model, plain, [*text, 20, 60], rows=0)
        difference = feed(model, tree, more).logits - feed(model, plain, more).logits
        wrong = model.open()
        feed(model, wrong, [*text, 20, 50], rows=0)
        other = feed(model, wrong, more).logits - feed(model, plain, more).logits
        assert np.abs(difference).max() < 0.1 * np.abs(other).max()


class TestOutputs:
    def test_only_the_last_rows_come_back(self, model):
        text = tokens(20)
        expected = whole(model, text)
        for rows in (0, 1, 5, 20):
            output = feed(model, model.open(), text, rows=rows)
            assert output.logits.shape == (rows, model.vocab_size)
            assert output.hidden is None
            np.testing.assert_allclose(output.logits, expected[20 - rows :], **CLOSE)

    def test_rows_and_hidden_states_are_each_sequences_own(self, model):
        texts = [tokens(6), tokens(9, seed=1), tokens(4, seed=2)]
        steps = [
            Step(model.open(), texts[0], rows=0),
            Step(model.open(), texts[1], rows=2, hidden=True),
            Step(model.open(), texts[2], rows=1),
        ]
        none, two, one = model.forward(steps)
        assert none.logits.shape == (0, model.vocab_size)
        assert (none.hidden, one.hidden) == (None, None)
        np.testing.assert_allclose(two.logits, whole(model, texts[1])[-2:], **CLOSE)
        alone = feed(model, model.open(), texts[1], rows=2, hidden=True)
        assert two.hidden.shape == (9, 64)  # of every token, whatever rows were wanted
        np.testing.assert_allclose(two.hidden, alone.hidden, **CLOSE)

    def test_outputs_stay_when_the_engine_runs_on(self, model):
        seq = model.open()
        first = feed(model, seq, tokens(5), hidden=True)
        kept = first.logits.copy(), first.hidden.copy()
        feed(model, seq, tokens(5, seed=8), hidden=True)
        np.testing.assert_array_equal(first.logits, kept[0])
        np.testing.assert_array_equal(first.hidden, kept[1])

    def test_the_callers_tokens_are_read_not_kept(self, model):
        """Feeding the same shape twice reuses memory: never the caller's."""
        seq, text = model.open(), tokens(5)
        before = text.copy()
        feed(model, seq, text)
        feed(model, seq, tokens(5, seed=8))
        np.testing.assert_array_equal(text, before)

    def test_no_steps_no_outputs(self, model):
        assert model.forward([]) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"tokens": []}, "at least one token"),
            ({"tokens": [5, -1]}, r"token -1 is outside 0\.\.258"),
            ({"tokens": [5, 259]}, r"token 259 is outside 0\.\.258"),
            ({"tokens": [1, 2], "rows": 3}, "3 rows wanted, 2 tokens given"),
            ({"tokens": [1, 2], "rows": -1}, "-1 rows wanted"),
            ({"tokens": [1] * 257}, "257 tokens; max_seq_len is 256"),
            ({"tokens": [1, 2], "positions": np.array([0])}, r"positions \(1,\), expected \(2,\)"),
            ({"tokens": [1, 2], "positions": np.array([0, 256])}, r"within 0\.\.255"),
            ({"tokens": [1, 2], "mask": np.ones((2, 3), bool)}, r"mask \(2, 3\)"),
            ({"tokens": [1, 2], "mask": np.zeros((2, 2), bool)}, "attend to itself"),
        ],
    )
    def test_a_bad_step_is_refused_and_changes_nothing(self, model, options, message):
        good, bad = model.open(), model.open()
        free = model.free_blocks
        step = Step(**{"seq": bad, **options, "tokens": np.array(options["tokens"], np.int64)})
        with pytest.raises(InputError, match=message):
            model.forward([Step(good, tokens(3)), step])
        assert (model.length(good), model.length(bad), model.free_blocks) == (0, 0, free)

    def test_a_sequence_that_is_not_open(self, model):
        seq = model.open()
        model.close(seq)
        for call in (
            lambda: model.length(seq),
            lambda: model.close(seq),
            lambda: model.truncate(seq, 0),
            lambda: model.forward([Step(seq, tokens(1))]),
        ):
            with pytest.raises(InputError, match=f"sequence {seq} is not open"):
                call()

    def test_a_sequence_twice_in_one_step(self, model):
        seq = model.open()
        with pytest.raises(InputError, match="twice"):
            model.forward([Step(seq, tokens(1)), Step(seq, tokens(1))])

    def test_lengths_that_were_never_fed(self, model):
        seq = model.open()
        feed(model, seq, tokens(5))
        with pytest.raises(InputError, match="cannot truncate 5 tokens to 6"):
            model.truncate(seq, 6)
        with pytest.raises(InputError, match="cannot keep rows"):
            model.keep(seq, 3, [2])

    def test_more_sequences_than_the_engine_has(self, model):
        for _ in range(model.max_batch_size):
            model.open()
        with pytest.raises(CapacityError, match="max_batch_size"):
            model.open()

    def test_kv_memory_runs_out_without_a_trace_and_comes_back(self, engine_dir):
        # A block: 2 layers x (key, value) x 2 heads x 32 tokens x 16 x 4 bytes = 16 KiB; 4 of them.
        model = CpuBackend().load(engine_dir, kv_cache_bytes=65_536)
        assert model.free_blocks == 4
        first, second = model.open(), model.open()
        feed(model, first, tokens(96))
        with pytest.raises(CapacityError, match="no KV memory for 2 more block"):
            model.forward([Step(first, tokens(1)), Step(second, tokens(1))])
        assert (model.length(first), model.length(second), model.free_blocks) == (96, 0, 1)
        model.truncate(first, 10)  # its two spare blocks are taken when they are needed
        feed(model, second, tokens(96), rows=0)
        assert model.free_blocks == 0
        np.testing.assert_allclose(
            feed(model, first, tokens(20)[:5]).logits,
            whole_after(engine_dir, tokens(96)[:10], tokens(20)[:5]),
            **CLOSE,
        )


def whole_after(engine_dir, past, new):
    model = CpuBackend().load(engine_dir)
    return whole(model, np.concatenate([past, new]))[-len(new) :]


def test_rotation_is_one_kernel_for_queries_and_one_for_keys(loaded):
    """OpenVINO finds it by its exact form; written otherwise it is eight of them."""
    graph = loaded._paged._request.get_compiled_model().get_runtime_model()
    kinds = [node.get_rt_info()["layerType"].astype(str) for node in graph.get_ops()]
    assert kinds.count("RoPE") == 2 * loaded.engine.settings.num_layers

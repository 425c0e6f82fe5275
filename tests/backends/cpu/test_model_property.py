"""Whatever happened to a sequence before, its next logits are those of its text read plainly."""

import numpy as np
import pytest

from tests.backends.cpu.conftest import whole
from toolkit.speculation.interfaces import Step


class Journal:
    """The engine, and what each open sequence should hold."""

    def __init__(self, model, seed):
        self.model = model
        self.rng = np.random.default_rng(seed)
        self.texts: dict[int, list[int]] = {}

    def open(self):
        if len(self.texts) < self.model.max_batch_size - 1:  # `whole` needs one
            self.texts[self.model.open()] = []

    def close(self):
        self.model.close(self.any())
        del self.texts[self.picked]

    def any(self):
        self.picked = int(self.rng.choice(list(self.texts)))
        return self.picked

    def truncate(self):
        seq = self.any()
        length = int(self.rng.integers(0, len(self.texts[seq]) + 1))
        self.model.truncate(seq, length)
        del self.texts[seq][length:]

    def feed(self):
        """Some of the sequences, each with its own number of tokens; every row is checked."""
        steps = []
        for seq, text in self.texts.items():
            room = self.model.max_seq_len - len(text)
            count = int(min(self.rng.choice([0, 1, 1, 4, 33, 70]), room))
            if count:
                steps.append(Step(seq, self.rng.integers(0, 256, count), rows=count))
        for step, output in zip(steps, self.model.forward(steps), strict=True):
            text = self.texts[step.seq]
            text += step.tokens.tolist()
            expected = whole(self.model, np.array(text))[-len(step.tokens) :]
            np.testing.assert_allclose(output.logits, expected, atol=5e-5, rtol=0)

    def grow_a_tree_and_keep_a_path(self):
        seq = self.any()
        base = len(self.texts[seq])
        count = int(self.rng.integers(2, 12))
        if base + count > self.model.max_seq_len:
            return
        parents = [int(self.rng.integers(-1, node)) for node in range(count)]
        mask, depth = np.eye(count, dtype=bool), np.zeros(count, np.int64)
        for node, parent in enumerate(parents):
            if parent >= 0:
                mask[node] |= mask[parent]
                depth[node] = depth[parent] + 1
        tokens = self.rng.integers(0, 256, count)
        self.model.forward([Step(seq, tokens, positions=base + depth, mask=mask, rows=0)])
        kept = np.flatnonzero(mask[int(self.rng.integers(count))]).tolist()
        self.model.keep(seq, base, kept)
        self.texts[seq] += tokens[kept].tolist()


@pytest.mark.parametrize("seed", range(8))
def test_any_history_leaves_the_text_and_nothing_else(model, seed):
    journal = Journal(model, seed)
    journal.open()
    actions = ["open", "feed", "feed", "truncate", "grow_a_tree_and_keep_a_path", "close"]
    for _ in range(60):
        action = str(journal.rng.choice(actions))
        if journal.texts or action == "open":
            getattr(journal, action)()
    journal.feed()
    assert {seq: model.length(seq) for seq in journal.texts} == {
        seq: len(text) for seq, text in journal.texts.items()
    }

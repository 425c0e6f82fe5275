"""Trees of drafts, and the target's states on their way to the drafter."""

import numpy as np
import pytest

from toolkit.speculation.draft_length import Adaptive, Fixed
from toolkit.speculation.grammar import masked
from toolkit.speculation.interfaces import Drafter, Proposal, SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop
from toolkit.speculation.sampling import Role, distribution, draw, uniform

from .table_model import FakeTableModel
from .test_loop import DRAFT, TARGET, FakeScriptedDrafter, plain, prompts, texts


class FakeTreeDrafter(Drafter):
    """Two or three children of every node, down to the depth asked for.

    Greedily the likeliest of the table, by chance drawn from it without replacement.
    """

    def __init__(self, table=DRAFT, width=2):
        self.table, self.width = table, width

    @classmethod
    def create(cls, options, models):
        return cls()

    def propose(self, requests):
        return [self.tree(request) for request in requests]

    def tree(self, request):
        tokens, parents, rows = [], [], []
        level = [(-1, list(request.tokens))]
        for depth in range(request.draft_len):
            following = []
            for parent, text in level[:2]:
                context = tuple([0, 0, *text][1 - self.table.ndim :])
                sampling = SAMPLING if request.sampling.greedy else request.sampling
                logits = self.table[context]
                if request.matcher:
                    logits = masked(logits, request.matcher.mask(text[len(request.tokens) :]))
                probs = distribution(logits, sampling)
                row = probs.copy()
                for sibling in range(min(self.width, np.count_nonzero(probs))):
                    position = len(request.tokens) + depth
                    number = uniform(request.sampling.seed, position, Role.DRAFT, sibling)
                    greedy = request.sampling.greedy
                    token = int(row.argmax()) if greedy else draw(row, number)
                    row[token] = 0.0
                    tokens.append(token)
                    parents.append(parent)
                    rows.append(probs)
                    following.append((len(tokens) - 1, [*text, token]))
            level = following
        probs = None if request.sampling.greedy else np.stack(rows)
        return Proposal(tokens, probs, tuple(parents))


SAMPLING = SamplingParams(temperature=1.0)


@pytest.mark.parametrize("policy", [Fixed(1), Fixed(3), Adaptive(1, 4)])
@pytest.mark.parametrize("width", [1, 3])
def test_greedy_trees_give_the_plain_text_in_ragged_batches(policy, width):
    requests = [Request(prompt, 40) for prompt in prompts(12)]
    target = FakeTableModel(TARGET, max_batch_size=4)
    outputs = SpeculativeLoop(target, FakeTreeDrafter(width=width), policy).generate(requests)
    assert texts(outputs) == plain(requests)
    assert sum(output.stats.accepted_tokens for output in outputs) > 100
    assert target.cache == {}


def test_a_wider_tree_accepts_more():
    requests = [Request(prompt, 40) for prompt in prompts(12)]
    accepted = [
        sum(
            output.stats.accepted_tokens
            for output in SpeculativeLoop(
                FakeTableModel(TARGET), FakeTreeDrafter(width=width), Fixed(3)
            ).generate(requests)
        )
        for width in (1, 2, 3)
    ]
    assert accepted == sorted(set(accepted))


def test_a_tree_is_cut_to_the_targets_context():
    [output] = SpeculativeLoop(
        FakeTableModel(TARGET, max_seq_len=20), FakeTreeDrafter(width=3), Fixed(4)
    ).generate([Request((1, 2, 3), 64)])
    assert output.tokens == plain([Request((1, 2, 3), 17)])[0]


def test_a_tree_without_its_parents_is_refused():
    broken = FakeScriptedDrafter()
    broken.propose = lambda requests: [Proposal([1, 2], None, (1, -1)) for _ in requests]
    with pytest.raises(RuntimeError, match="before its parent"):
        SpeculativeLoop(FakeTableModel(TARGET), broken, Fixed(2)).generate([Request((1,), 5)])


# What the target thinks reaches a drafter that asks for it.


class FakeWatchingDrafter(FakeTreeDrafter):
    """Notes the states it is shown: the fake target's state of a token is that token."""

    reads_hidden = True

    def __init__(self):
        super().__init__()
        self.seen, self.done = {}, []

    def observe(self, seq, hidden):
        self.seen.setdefault(seq, []).extend(hidden[:, 0].astype(int).tolist())

    def propose(self, requests):
        for request in requests:
            assert self.seen[request.seq] == list(request.tokens[:-1])
        return super().propose(requests)


def test_every_token_that_stands_is_observed_once_and_in_order():
    requests = [Request(prompt, 30) for prompt in prompts(8)]
    drafter = FakeWatchingDrafter()
    loop = SpeculativeLoop(
        FakeTableModel(TARGET, max_batch_size=3), drafter, Fixed(3), max_prefill_tokens=7
    )
    assert texts(loop.generate(requests)) == plain(requests)
    assert len(drafter.seen) == 8

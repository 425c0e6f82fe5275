"""A draft that says some tokens only, on the engine: nothing else is drafted, no text changes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.engine_fixtures import VOCAB_SIZE, tiny_recipe, write_tiny_model
from tests.head_fixtures import repeated_phrases
from tests.reduced_vocabulary import reduce_vocabulary
from toolkit.backends.runtime import open_runtime
from toolkit.execute import build
from toolkit.plan import make_plan
from toolkit.speculation.interfaces import DraftRequest, SamplingParams, Step
from toolkit.speculation.loop import Request
from toolkit.speculation.sampling import distribution
from toolkit.speculation.trace import TracedText
from toolkit.speculation.verify import residual, verify
from toolkit.store import Store

SAMPLED = SamplingParams(1.0, seed=4)
PROMPTS = repeated_phrases()[:12]


def runtime_of(directory, ids=None, parallel=1):
    """Target and draft below `directory`; with `ids`, the draft says those."""
    write_tiny_model(directory / "target")
    write_tiny_model(directory / "draft", noise=0.02)
    if ids is not None:
        reduce_vocabulary(directory / "draft", ids)
    recipe = tiny_recipe(directory)
    words = recipe.model_dump(exclude_unset=True)
    words["speculation"]["draft"]["parallel"] = {"tp": parallel}
    recipe = type(recipe).model_validate(words)
    store = Store(directory / "store")
    return open_runtime(build(make_plan(recipe, store), store), threads=1)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return runtime_of(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def plain(full):
    """What the target says by itself."""
    return full.loop(draft_len=0).generate([Request(prompt, 48) for prompt in PROMPTS])


@pytest.fixture(scope="module")
def ids(plain):
    """Its most frequent tokens, not in their order: d2t is no prefix and does not ascend."""
    counts = Counter(token for output in plain for token in output.tokens)
    return [token for token, _ in counts.most_common(40)]


@pytest.fixture(scope="module")
def reduced(tmp_path_factory, ids):
    return runtime_of(tmp_path_factory.mktemp("reduced"), ids)


def logits(model, tokens, rows):
    seq = model.open()
    try:
        return model.forward([Step(seq, np.asarray(tokens, np.int64), rows=rows)])[0].logits
    finally:
        model.close(seq)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_it_says_what_the_whole_model_says_of_its_tokens(full, reduced, ids, rows):
    whole = logits(full.models["draft"], PROMPTS[0], rows)
    some = logits(reduced.models["draft"], PROMPTS[0], rows)
    assert some.shape == (rows, VOCAB_SIZE)
    np.testing.assert_allclose(some[:, ids], whole[:, ids], rtol=1e-5, atol=1e-5)
    rest = np.setdiff1d(np.arange(VOCAB_SIZE), ids)
    assert (some[:, rest] == -np.inf).all()


def test_shards_of_it_are_joined_like_any_others(tmp_path, reduced, ids):
    """41 rows on two ranks: one row of padding that must not become a token."""
    odd = [*ids, next(t for t in range(VOCAB_SIZE) if t not in ids)]
    two = runtime_of(tmp_path, odd, parallel=2)
    split = logits(two.models["draft"], PROMPTS[0], 3)
    np.testing.assert_array_equal(
        split[:, ids], logits(reduced.models["draft"], PROMPTS[0], 3)[:, ids]
    )
    assert np.isfinite(split).sum() == 3 * len(odd)


def test_greedy_text_equals_plain_text(reduced, plain, ids):
    requests = [Request(prompt, 48) for prompt in PROMPTS]
    outputs = reduced.loop(draft_len=4).generate(requests)
    assert [o.tokens for o in outputs] == [o.tokens for o in plain]
    assert sum(o.stats.accepted_tokens for o in outputs) > 50
    assert any(token not in ids for o in outputs for token in o.tokens)  # the target's own


def test_a_step_has_exactly_the_targets_distribution(reduced, ids):
    """At temperature 1, with the engine's own p and q: over all draft tokens and uniforms.

    A drafted token x comes out with q(x) min(1, p(x) / q(x)), and what is refused is replaced from
    the residual; verify itself is asked on both sides of every accept test.
    """
    drafter = reduced.drafter()
    for seq, prompt in enumerate(PROMPTS[:4]):
        text = [*prompt, 7]
        drafter.begin(seq, prompt)
        [proposal] = drafter.propose([DraftRequest(seq, text, 1, SAMPLED)])
        drafter.end(seq)
        q = proposal.probs[0]
        p = distribution(logits(reduced.target, text, 1)[0], SAMPLED)
        outside = np.setdiff1d(np.arange(VOCAB_SIZE), ids)
        assert (q[outside] == 0).all()
        assert q.sum() == pytest.approx(1, abs=1e-12)
        assert p[outside].sum() > 0  # of tokens that are never drafted
        emitted, refused = np.zeros(VOCAB_SIZE), 0.0
        for token in np.flatnonzero(q).tolist():
            accept = min(1.0, p[token] / q[token])
            below = verify([token], q[None], np.stack([p, p]), [accept * (1 - 1e-9)], [0.5, 0.5])
            assert (below[0][0], below[1]) == (token, 1)
            if accept < 1:
                above = verify([token], q[None], np.stack([p, p]), [accept * (1 + 1e-9)], [0.5] * 2)
                assert above[1] == 0
            emitted[token] += q[token] * accept
            refused += q[token] * (1 - accept)
        left = residual(p, q)
        np.testing.assert_allclose(emitted + refused * left / left.sum(), p, atol=1e-12)


def test_drafted_tokens_are_its_own_at_any_temperature(reduced, ids):
    drafter = reduced.drafter()
    for seed, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(1.5, top_k=60, top_p=0.99, seed=seed)  # more than it can say
        drafter.begin(seed, prompt)
        [proposal] = drafter.propose([DraftRequest(seed, [*prompt, 7], 4, sampling)])
        drafter.end(seed)
        assert len(proposal.tokens) == 4
        assert set(proposal.tokens) <= set(ids)


def test_a_trace_gives_other_tokens_no_chance(reduced, plain, ids):
    text = TracedText(PROMPTS[0], tuple(plain[0].tokens), SamplingParams())
    found = reduced.drafter().trace(text, 1)
    for start, token in enumerate(plain[0].tokens[1:]):
        if token not in ids:
            assert found.accept[start, 0] == 0
    assert found.accept.sum() > 0

"""Tree verification is exact: in rational arithmetic, and by counting."""

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

from toolkit.speculation.sampling import Role
from toolkit.speculation.verify_tree import verify_tree, verify_tree_greedy

#      text
#     0    1
#    2 3   4
PARENTS = (-1, -1, 0, 0, 1)


class TestGreedy:
    def verify(self, target_tokens):
        return verify_tree_greedy([7, 8, 1, 2, 3], PARENTS, target_tokens)

    def test_the_longest_path_stands_and_the_target_adds_one(self):
        # After the text the target says 7 (node 0), after that 2 (node 3), after that 9.
        assert self.verify([7, 2, 0, 0, 9, 0]) == ([7, 2, 9], [0, 3])

    def test_a_second_child_may_stand(self):
        assert self.verify([8, 2, 3, 0, 0, 5]) == ([8, 3, 5], [1, 4])

    def test_no_child_stands(self):
        assert self.verify([6, 2, 3, 0, 0, 5]) == ([6], [])

    def test_a_path_may_end_before_its_leaf(self):
        assert self.verify([7, 6, 3, 0, 0, 5]) == ([7, 6], [0])


def exact(target, draft, siblings):
    """The exact distribution of the emitted token, by the paper's own recursion.

    Every ordered draw without replacement has its probability, and for each the accept tests have
    theirs: nothing here comes from the code under test but which numbers it asks for.
    """
    size = len(target)
    emitted = [Fraction(0)] * size
    for drawn in permutations(range(size), siblings):
        weight, left = Fraction(1), Fraction(1)
        for token in drawn:
            weight *= draft[token] / left if left else 0
            left -= draft[token]
        if weight:
            for token, share in outcomes(target, draft, drawn):
                emitted[token] += weight * share
    return emitted


def outcomes(target, draft, drawn):
    """verify_tree driven through both sides of each accept test, with the mass of each side."""
    rows = np.array([[float(p) for p in target]] * (len(drawn) + 1))
    probs = np.array([[float(q) for q in draft]] * len(drawn))
    parents = (-1,) * len(drawn)

    def run(accepting):
        def number(depth, role, sibling=0):
            if depth or role is Role.EMIT:
                return 0.0
            return 0.0 if sibling == accepting else np.nextafter(1.0, 0.0)

        return verify_tree(drawn, parents, probs, rows, number)

    rest, q, chance = list(target), list(draft), Fraction(1)
    for sibling, token in enumerate(drawn):
        accept = min(Fraction(1), rest[token] / q[token])
        if accept:
            tokens, path = run(sibling)
            if accept < 1 or path == [sibling]:
                assert (tokens[0], path) == (token, [sibling])
            yield token, chance * accept
        chance *= 1 - accept
        if not chance:
            return
        rest = [max(p - d, Fraction(0)) for p, d in zip(rest, q, strict=True)]
        rest = [p / sum(rest) for p in rest]
        q[token] = Fraction(0)
        left = sum(q)
        q = [d / left for d in q] if left else q
    for token, share in enumerate(rest):
        if share:
            yield token, chance * share


CASES = [
    ([(1, 2), (1, 4), (1, 4)], [(1, 10), (6, 10), (3, 10)], 2),
    ([(1, 2), (1, 4), (1, 8), (1, 8)], [(1, 4), (1, 4), (1, 4), (1, 4)], 3),
    ([(7, 10), (1, 10), (1, 10), (1, 10)], [(1, 10), (7, 10), (1, 10), (1, 10)], 2),
]


@pytest.mark.parametrize(("target", "draft", "siblings"), CASES)
def test_siblings_without_replacement_leave_the_target_exact(target, draft, siblings):
    target = [Fraction(*p) for p in target]
    assert exact(target, [Fraction(*q) for q in draft], siblings) == target


def sampled(target, draft, parents, tokens_of, count=20_000, rule=verify_tree):
    """How often each first token is emitted, with fresh numbers for everything."""
    rng = np.random.default_rng(0)
    target, draft = np.array(target), np.array(draft)
    rows = np.stack([target] * (len(parents) + 1))
    counts = np.zeros(len(target))
    for _ in range(count):
        tokens, probs = tokens_of(rng, draft)
        table = {}

        def number(depth, role, sibling=0, table=table):
            return table.setdefault((depth, role, sibling), rng.random())

        emitted, _ = rule(tokens, parents, probs, rows, number)
        counts[emitted[0]] += 1
    return counts


def without_replacement(rng, draft):
    tokens = rng.choice(len(draft), size=2, replace=False, p=draft).tolist()
    return tokens, np.stack([draft, draft])


def top_two(rng, draft):
    return np.argsort(-draft)[:2].tolist(), None


def chi_square(counts, target):
    expected = np.array(target) * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


TARGET, DRAFT = [0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.1, 0.4]
LIMIT = 16.27  # chi-square, 3 degrees of freedom, p = 0.001


@pytest.mark.parametrize("tokens_of", [without_replacement, top_two])
def test_the_first_token_has_the_targets_distribution(tokens_of):
    assert chi_square(sampled(TARGET, DRAFT, (-1, -1), tokens_of), TARGET) < LIMIT


@pytest.mark.parametrize("tokens_of", [without_replacement, top_two])
def test_keeping_the_refused_token_in_the_draft_would_show(tokens_of):
    """The same test fails for a rule that forgets that siblings are drawn without replacement."""

    def broken(tokens, parents, probs, rows, number):
        target = rows[0]
        for sibling, token in enumerate(tokens):
            q = probs[sibling] if probs is not None else np.eye(4)[token] * 0.5
            if number(0, Role.ACCEPT, sibling) * q[token] < target[token]:
                return [token], [sibling]
            target = np.maximum(target - q, 0)
            target = target / target.sum()
        return [int(rng.choice(4, p=target))], []

    rng = np.random.default_rng(1)
    assert chi_square(sampled(TARGET, DRAFT, (-1, -1), tokens_of, rule=broken), TARGET) > LIMIT


def test_a_number_of_zero_never_accepts_the_impossible():
    rows = np.array([[0.0, 1.0]] * 2)
    assert verify_tree([0], (-1,), None, rows, lambda *_: 0.0) == ([1], [])

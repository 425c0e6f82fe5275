"""What every server is told for every drafter, as text that a person has read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.recipes import SPECULATION, one_device, recipe_for
from toolkit.errors import RecipeError
from toolkit.export import PEERS
from toolkit.registry import DRAFTERS

GOLDEN = Path(__file__).parents[1] / "golden" / "export"


def said(peer: str, drafter: str) -> str:
    """The text, or the refusal."""
    try:
        return PEERS[peer].export(recipe_for(drafter, **one_device(peer))).text
    except RecipeError as refused:
        return f"refused: {refused}\n"


@pytest.mark.parametrize("drafter", SPECULATION)
@pytest.mark.parametrize("peer", PEERS)
def test_the_text_is_the_one_that_was_read(peer, drafter):
    golden = GOLDEN / f"{peer}_{drafter}.txt"
    assert said(peer, drafter) == golden.read_text(encoding="utf-8")


def test_every_drafter_has_an_example():
    assert set(SPECULATION) == set(DRAFTERS)

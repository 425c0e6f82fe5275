"""Adding a drafter takes its own file and one line in the registry; everything else just asks."""

from typing import Literal

from pydantic import Field

from tests.speculation.table_model import FakeTableModel, random_table
from toolkit.recipe.schema import Recipe, Speculation
from toolkit.registry import DRAFTERS
from toolkit.speculation.draft_length import draft_length_policy
from toolkit.speculation.interfaces import Drafter, Proposal
from toolkit.speculation.loop import Request, SpeculativeLoop


class ToySpeculation(Speculation):
    drafter: Literal["toy"] = "toy"
    favourite: int = Field(0, ge=0)


class ToyDrafter(Drafter):
    """Always drafts its favourite token."""

    Options = ToySpeculation

    def __init__(self, favourite):
        self.favourite = favourite

    @classmethod
    def create(cls, options, models):
        return cls(options.favourite)

    def propose(self, requests):
        return [Proposal([self.favourite] * request.draft_len) for request in requests]


def test_a_toy_drafter_is_one_class_and_one_registry_line(monkeypatch):
    monkeypatch.setitem(DRAFTERS._entries, "toy", f"{__name__}:ToyDrafter")
    recipe = Recipe.model_validate(
        {
            "name": "toy",
            "target": {"checkpoint": "t"},
            "speculation": {"drafter": "toy", "max_draft_len": 3, "favourite": 2},
        }
    )
    assert list(recipe.models()) == ["target"]
    options = recipe.speculation
    table = random_table(0, 4)
    drafter = DRAFTERS[options.drafter].create(options, {})
    loop = SpeculativeLoop(FakeTableModel(table), drafter, draft_length_policy(options))
    requests = [Request((token,), 20) for token in range(4)]
    plain = SpeculativeLoop(FakeTableModel(table), None, draft_length_policy(options))
    outputs = loop.generate(requests)
    assert [o.tokens for o in outputs] == [o.tokens for o in plain.generate(requests)]
    assert sum(o.stats.draft_tokens for o in outputs) > 0


def test_every_registered_drafter_names_itself_in_its_options():
    for name in DRAFTERS:
        assert DRAFTERS[name].Options.model_fields["drafter"].default == name
        assert DRAFTERS[name].__doc__

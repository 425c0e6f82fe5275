"""Whatever recipe is exported: only documented options, or a refusal with reasons."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.export.test_peers import fits
from tests.migrate.test_property import recipes
from toolkit.errors import RecipeError
from toolkit.export import PEERS
from toolkit.export.vllm import CONFIG, CONFIG_KEYS
from toolkit.recipe.schema import Recipe


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=recipes, name=st.sampled_from(list(PEERS)))
def test_any_recipe_is_said_in_documented_words_or_refused(data, name):
    peer = PEERS[name]
    recipe = Recipe.model_validate(data)
    try:
        found = peer.export(recipe)
    except RecipeError as refused:
        assert refused.problems  # noqa: PT017
        return
    assert recipe.speculation.drafter in peer.methods
    for option, value in found.options.items():
        assert fits(peer.options[option], value), (option, value)
    for option, value in found.options.get(CONFIG, {}).items():
        assert fits(CONFIG_KEYS[option], value), (option, value)

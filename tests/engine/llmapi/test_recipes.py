"""Every bundled recipe for the PyTorch backend, planned for every release that has its drafter."""

from __future__ import annotations

import socket

import pytest
import yaml

from toolkit.engine.llmapi.config_rules import judge
from toolkit.engine.llmapi.deployment import llm_args_text
from toolkit.engine.llmapi.profiles import RELEASES, profile
from toolkit.errors import RecipeError
from toolkit.plan import make_plan
from toolkit.recipe.load import bundled_recipes, load_recipe
from toolkit.registry import DRAFTERS
from toolkit.store import Store

NAMES = [name for name in sorted(bundled_recipes()) if load_recipe(name).backend == "pytorch"]
PAIRS = [(name, release) for name in NAMES for release in RELEASES]


def test_there_is_a_recipe_for_every_drafter_of_the_backend():
    drafters = {name for name in DRAFTERS if DRAFTERS[name].llmapi_since} - {"none"}
    assert {load_recipe(name).speculation.drafter for name in NAMES} == drafters


@pytest.mark.parametrize(("name", "release"), PAIRS)
def test_it_is_planned_or_refused_with_the_release_that_brought_it(
    name, release, tmp_path, monkeypatch
):
    def refuse(*args):
        raise AssertionError("a plan must not touch the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    drafter = DRAFTERS[load_recipe(name).speculation.drafter]
    if drafter.unsupported_on("pytorch", release):
        with pytest.raises(RecipeError, match="it came with"):
            load_recipe(name, [f"tensorrt_llm={release}"])
        return
    # The only key of a bundled recipe that the oldest release lacks.
    older = ["pytorch.max_concurrency=null"] if release == "1.0.0" else []
    made = load_recipe(name, [f"tensorrt_llm={release}", *older])
    assert make_plan(made, Store(tmp_path)).artefacts
    config = yaml.safe_load(llm_args_text(made))["speculative_config"]
    assert judge(profile(release), config).problems == ()

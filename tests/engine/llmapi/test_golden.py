"""Every method on every release, as text that was read: WRITE_GOLDEN=1 rewrites it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.engine.llmapi.recipes import SECTIONS, recipe
from toolkit.engine.llmapi.config_rules import judge
from toolkit.engine.llmapi.deployment import llm_args_text
from toolkit.engine.llmapi.emit import llm_args
from toolkit.engine.llmapi.profiles import RELEASES, profile
from toolkit.registry import DRAFTERS

GOLDEN = Path(__file__).parents[2] / "golden" / "llmapi"
WRITE = bool(os.environ.get("WRITE_GOLDEN"))
PAIRS = [
    (drafter, release)
    for drafter in SECTIONS
    for release in RELEASES
    if DRAFTERS[drafter].unsupported_on("pytorch", release) is None
]


@pytest.mark.parametrize(("drafter", "release"), PAIRS)
def test_the_written_yaml_is_the_one_that_was_read(drafter, release):
    path = GOLDEN / f"{drafter}_{release}.yaml"
    text = llm_args_text(recipe(drafter, release))
    if WRITE:
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_no_golden_file_is_left_over():
    assert {path.name for path in GOLDEN.iterdir()} == {f"{d}_{r}.yaml" for d, r in PAIRS}


@pytest.mark.parametrize(("drafter", "release"), PAIRS)
def test_the_yaml_loads_round_trips_and_has_only_keys_of_its_release(drafter, release):
    made = recipe(drafter, release)
    loaded = yaml.safe_load(llm_args_text(made))
    assert loaded == llm_args(made)
    assert yaml.safe_load(yaml.safe_dump(loaded)) == loaded
    rules = profile(release)
    assert set(loaded) <= rules.llm_keys
    config = loaded.get("speculative_config")
    if drafter == "none":
        assert config is None
        return
    method = rules.methods[drafter]
    known = method.keys | set(rules.aliases) | {"decoding_type"}
    assert set(config) <= known
    assert config["decoding_type"] == method.decoding_type
    assert judge(rules, config).problems == ()


@pytest.mark.parametrize("drafter", SECTIONS)
@pytest.mark.parametrize("release", RELEASES)
def test_a_drafter_is_supported_where_the_release_has_its_class(drafter, release):
    known = drafter == "none" or drafter in profile(release).methods
    assert (DRAFTERS[drafter].unsupported_on("pytorch", release) is None) == known

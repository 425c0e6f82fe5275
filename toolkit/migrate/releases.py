"""The same recipe in the words of two releases: which keys are spelled or read otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.engine.llmapi.emit import speculative_config
from toolkit.engine.llmapi.profile import Profile
from toolkit.engine.llmapi.profiles import profile
from toolkit.recipe.rules import broken_rules
from toolkit.recipe.schema import Recipe
from toolkit.speculation.migration import Change

SECTION = "speculative_config"


def spelling_changes(source: Recipe, found: Recipe) -> Iterator[Change]:
    """What `build` will write otherwise, key by key; nothing for what it could not write before."""
    if source.backend != found.backend or any(broken_rules(source)):
        return
    old_rules, new_rules = profile(source.tensorrt_llm), profile(found.tensorrt_llm)
    old = _newest_words(speculative_config(source), old_rules)
    new = _newest_words(speculative_config(found), new_rules)
    for key in [*old, *(key for key in new if key not in old)]:
        if change := _change(key, old, new, old_rules, new_rules):
            yield change


def _change(
    key: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    old_rules: Profile,
    new_rules: Profile,
) -> Change | None:
    was, now = old_rules.key(key), new_rules.key(key)
    field = f"{SECTION}.{was if key in old else now}"
    if key not in new:
        return Change(field, "dropped", f"not written for {new_rules.name}")
    if key not in old:
        return Change(field, "changed", f"written for {new_rules.name}: {new[key]}")
    if old[key] != new[key]:
        return Change(
            field, "changed", f"{old[key]} -> {new[key]}{_meaning(key, old_rules, new_rules)}"
        )
    if was != now:
        return Change(field, "renamed", f"{SECTION}.{now}")
    return None


def _meaning(key: str, old: Profile, new: Profile) -> str:
    if key == "draft_len_schedule" and old.schedule_keys != new.schedule_keys:
        return (
            f": {old.name} reads a key as 'batch {old.schedule_keys} this', {new.name} as 'batch "
            f"{new.schedule_keys} this'"
        )
    return ""


def _newest_words(config: Mapping[str, Any], rules: Profile) -> dict[str, Any]:
    names = {spelled: name for name, spelled in rules.spelling.items()}
    return {names.get(key, key): value for key, value in config.items()}

"""What one stretch of TensorRT-LLM releases knows about speculation: a table per release.

Names on our side are the newest ones; `Profile.key` spells them for a release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from toolkit.recipe.release import Version

# "at least": {1: 4, 8: 2} drafts 4 from batch 1 on and 2 from batch 8 on.
# "at most": {4: 4, 8: 2} drafts 4 up to batch 4, 2 up to batch 8 and nothing above.
ScheduleKeys = Literal["at least", "at most"]
# How a drafter inside the target's graph comes to follow temperature, top_k and top_p.
Sampling = Literal["never", "allow_advanced_sampling", "always"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """One class of llm_args: how speculative_config names it, and every key that it takes."""

    class_name: str
    decoding_type: str
    keys: frozenset[str]
    needs_draft: bool = False  # a checkpoint of its own


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The rules of every release from `since` up to the next profile."""

    name: str
    since: Version
    read_in: str  # what the table was taken from
    methods: Mapping[str, Method]  # by drafter
    spelling: Mapping[str, str]  # newest name of a key -> its name here, where they differ
    aliases: Mapping[str, str]  # another accepted spelling -> the key that it means
    fixes: Mapping[str, str]  # a key or decoding_type that is refused here -> what to write
    schedule_keys: ScheduleKeys | None
    sampling: Sampling
    draft_len_checked: bool  # a missing or zero max_draft_len is refused
    dynamic_tree: bool
    total_draft_tokens_required: bool  # with a dynamic tree
    two_models: bool  # a drafter beside the target's graph can be asked for
    llm_keys: frozenset[str]  # keys of TorchLlmArgs that we write
    config_option: str  # of trtllm-serve and trtllm-bench
    # What could not be read for these releases, by drafter or key that it concerns ("": all).
    unsure: Mapping[str, str] = field(default_factory=dict)
    deprecated: Mapping[str, str] = field(default_factory=dict)  # key -> what it does now

    def key(self, name: str) -> str:
        """The spelling of a key here."""
        return self.spelling.get(name, name)

    def method_of(self, decoding_type: str) -> tuple[str, Method] | None:
        """The drafter that a decoding_type means here; `Eagle` means EAGLE-3."""
        for drafter, method in self.methods.items():
            if method.decoding_type == decoding_type:
                return drafter, method
        if decoding_type == "Eagle" and "eagle3" in self.methods:
            newer = self.methods["eagle3"]  # Eagle's own class lacks what came with Eagle3
            return "eagle3", replace(newer, keys=newer.keys - {"sa_config"})
        return None

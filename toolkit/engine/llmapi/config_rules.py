"""Would a release take this speculative_config? Every reason why not, each with what to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.engine.llmapi.profile import Method, Profile
from toolkit.errors import did_you_mean

Problem = tuple[str, str]  # key of speculative_config, and what is wrong with it
MAX_SAMPLED_TREE = 32  # children of a node of a dynamic tree with rejection sampling
_REJECTION = {"eagle3", "mtp", "pard", "dflash", "dspark", "draft_target"}


@dataclass(frozen=True)
class Verdict:
    """What the release refuses, and what it accepts but means otherwise than one may think."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class _Case:
    profile: Profile
    drafter: str
    method: Method
    config: Mapping[str, Any]  # aliases resolved

    def has(self, key: str) -> bool:
        return self.config.get(key) is not None


def judge(profile: Profile, config: Mapping[str, Any]) -> Verdict:
    """The release's own checks, on a speculative_config in the release's own words."""
    kind = config.get("decoding_type")
    found = profile.method_of(kind) if isinstance(kind, str) else None
    if found is None:
        return Verdict((("decoding_type", _unknown_type(profile, kind)),))
    drafter, method = found
    resolved = {profile.aliases.get(key, key): value for key, value in config.items()}
    case = _Case(profile, drafter, method, resolved)
    problems = [problem for rule in _RULES for problem in rule(case)]
    return Verdict(tuple(problems), tuple(_warnings(case)))


def fix_for(profile: Profile, name: str) -> str:
    """What to write instead of a name that this release refuses, or the names nearest to it."""
    text = profile.fixes.get(name, "")
    return text.format(draft_key=profile.key("speculative_model"))


def _unknown_type(profile: Profile, kind: Any) -> str:
    known = sorted({method.decoding_type for method in profile.methods.values()})
    if kind is None:
        return f"required: one of {', '.join(known)}"
    fix = fix_for(profile, str(kind)) or did_you_mean(str(kind), known).removeprefix("; ")
    return (
        f"TensorRT-LLM {profile.name} has no {kind!r} on this backend"
        f"{f'; {fix}' if fix else ''} (known: {', '.join(known)})"
    )


def _keys(case: _Case) -> Iterator[Problem]:
    for key in case.config:
        if key in case.method.keys or key == "decoding_type":
            continue
        fix = fix_for(case.profile, key)
        hint = f"; {fix}" if fix else did_you_mean(key, case.method.keys)
        yield (
            key,
            f"TensorRT-LLM {case.profile.name} refuses it for {case.method.decoding_type}{hint}",
        )


def _draft(case: _Case) -> Iterator[Problem]:
    key = case.profile.key("speculative_model")
    key = case.profile.aliases.get(key, key)
    if case.method.needs_draft and not case.has(key):
        yield (
            case.profile.key("speculative_model"),
            f"required for {case.method.decoding_type}: directory or hub id of the draft",
        )


def _draft_len(case: _Case) -> Iterator[Problem]:
    checked = case.profile.draft_len_checked or case.drafter == "eagle3"
    length = case.config.get("max_draft_len")
    if case.drafter != "mtp" and checked and (length is None or length < 1):
        yield "max_draft_len", f"{length}; {case.method.decoding_type} needs 1 or more"


def _schedule(case: _Case) -> Iterator[Problem]:
    schedule = case.config.get("draft_len_schedule")
    if not schedule or case.profile.schedule_keys is None:
        return
    length = case.config.get("max_draft_len", case.config.get("num_nextn_predict_layers"))
    first = 1 if case.profile.schedule_keys == "at least" else min(schedule)
    if schedule.get(first) != length:
        yield (
            "draft_len_schedule",
            f"{dict(schedule)}: TensorRT-LLM {case.profile.name} reads a key as "
            f"'batch {case.profile.schedule_keys} this', and wants max_draft_len ({length}) at "
            f"{'key 1' if first == 1 else f'the smallest key ({first})'}",
        )
    if case.profile.schedule_keys == "at most" and case.has("max_concurrency"):
        yield "max_concurrency", "excludes draft_len_schedule, which it is turned into; remove it"


def _tree(case: _Case) -> Iterator[Problem]:
    config, profile = case.config, case.profile
    if not config.get("use_dynamic_tree"):
        return
    if not profile.dynamic_tree:
        yield (
            "use_dynamic_tree",
            f"TensorRT-LLM {profile.name} has no dynamic tree on this backend; it came with 1.3",
        )
        return
    top_k, length = config.get("dynamic_tree_max_topK"), config.get("max_draft_len")
    total = config.get("max_total_draft_tokens")
    if top_k is None:
        yield "dynamic_tree_max_topK", "required with use_dynamic_tree"
    if total is None and profile.total_draft_tokens_required:
        yield "max_total_draft_tokens", "required with use_dynamic_tree"
    if total and top_k and length and not length <= total <= top_k * length:
        yield "max_total_draft_tokens", f"{total} is outside {length}..{top_k * length}"
    if config.get("eagle_choices"):
        yield "eagle_choices", "a dynamic tree has no choices; remove one of the two"


def _lookup(case: _Case) -> Iterator[Problem]:
    key, size = "max_matching_ngram_size", case.config.get("max_matching_ngram_size")
    if size is None:
        return
    if case.drafter == "sa" and size == 0:
        yield key, "0 matches nothing; use -1 for the longest match"
    if case.drafter == "ngram" and case.profile.draft_len_checked and size < 1:
        yield key, f"{size}; use 1 or more"


def _rejection(case: _Case) -> Iterator[Problem]:
    key = "use_rejection_sampling"
    if not case.config.get(key) or key not in case.method.keys:
        return
    if case.drafter not in _REJECTION:
        yield key, f"{case.method.decoding_type} drafts without probabilities; remove it"
    if case.config.get("sa_config"):
        yield key, "cannot be combined with sa_config; remove one of the two"
    if (case.config.get("dynamic_tree_max_topK") or 0) > MAX_SAMPLED_TREE:
        yield key, f"dynamic_tree_max_topK may be {MAX_SAMPLED_TREE} at most with it"
    if case.drafter != "eagle3" and case.config.get("use_relaxed_acceptance_for_thinking"):
        yield key, "cannot be combined with relaxed acceptance; remove one of the two"


_RULES: tuple[Callable[[_Case], Iterator[Problem]], ...] = (
    _keys, _draft, _draft_len, _schedule, _tree, _lookup, _rejection,
)  # fmt: skip


def _warnings(case: _Case) -> Iterator[str]:
    config, profile = case.config, case.profile
    if config["decoding_type"] == "Eagle" and case.method.decoding_type != "Eagle":
        yield "decoding_type Eagle is read as Eagle3"
    if case.drafter == "mtp" and "num_nextn_predict_layers" in profile.deprecated:
        if config.get("max_draft_len") is None and config.get("num_nextn_predict_layers") is None:
            yield "no max_draft_len: 1 token is drafted"
    elif case.drafter == "mtp" and config.get("num_nextn_predict_layers") is None:
        yield (
            f"max_draft_len {config.get('max_draft_len')} is overwritten by "
            "num_nextn_predict_layers, whose default is 1: 1 token is drafted; write "
            "num_nextn_predict_layers"
        )
    for key, what in profile.deprecated.items():
        if case.has(key):
            yield f"{key}: {what}"
    if any("acceptance_" in key and config.get(key) for key in config):
        yield "the acceptance gate ends speculation for good: only a restart brings it back"

"""The directory that deploys a recipe: llm_args.yaml, the draft, start scripts and the probe."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from toolkit.checkpoint.drafts.eagle3_config import CAPTURED
from toolkit.checkpoint.small_files import small_files_here
from toolkit.engine.llmapi.captured import CAPTURE_KEY, captured_config, captured_problem
from toolkit.engine.llmapi.emit import DRAFT_DIR, NOTHING, llm_args, wanted_config
from toolkit.engine.llmapi.notes import recipe_notes
from toolkit.engine.llmapi.profiles import profile
from toolkit.engine.llmapi.scripts import bench_script, serve_script
from toolkit.errors import InputError
from toolkit.recipe.schema import Recipe
from toolkit.store import MANIFEST

DRAFT = "draft"
LLM_ARGS = "llm_args.yaml"
# Another release's words for a key: the probe takes the first that it finds.
_OTHER_NAMES = {
    "begin_thinking_phase_token": ["BEGIN_THINKING_PHASE_TOKEN"],
    "end_thinking_phase_token": ["END_THINKING_PHASE_TOKEN"],
}
# Without these a release behaves as with them, or only reports less.
_OPTIONAL = (
    "allow_advanced_sampling", "enable_iter_perf_stats", "return_perf_metrics", "is_use_oldest",
    "is_public_pool",
)  # fmt: skip
# Names that a drafter's class and decoding_type had or have, newest first.
_NAMES = {
    "eagle3": (["Eagle3DecodingConfig", "EagleDecodingConfig"], ["Eagle3", "Eagle"]),
    "draft_target": (["DraftTargetDecodingConfig"], ["Draft_Target", "DraftTarget"]),
}


def deployment_spec(recipe: Recipe, draft_digest: str | None) -> dict[str, Any]:
    """What a deployment's digest is taken over: the text of its files, and the draft."""
    hashes = {
        name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts(recipe).items()
    }
    return {"release": recipe.tensorrt_llm, "files": hashes, "draft": draft_digest}


def write_deployment(recipe: Recipe, out: Path, draft: Path | None) -> None:
    """The directory, whole. `draft` is a prepared draft checkpoint."""
    more: Mapping[str, Any] = NOTHING
    if draft is not None:
        more = _told_by_draft(recipe, draft)
        _link_files(draft, out / DRAFT)
    for name, text in texts(recipe, more).items():
        path = out / name
        path.write_text(text, encoding="utf-8")
        if name.endswith(".sh"):
            path.chmod(0o755)


def read_llm_args(directory: Path, recipe: Recipe) -> dict[str, Any]:
    """What `tensorrt_llm.LLM` is called with: llm_args.yaml, the model, the draft's full path."""
    path = directory / LLM_ARGS
    try:
        args = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"{path}: not a deployment of spectool: {error}") from None
    if not isinstance(args, dict):
        raise InputError(f"{path}: not a mapping")
    key = profile(recipe.tensorrt_llm).key("speculative_model")
    speculation = args.get("speculative_config") or {}
    if speculation.get(key) == DRAFT_DIR:
        args["speculative_config"] = {**speculation, key: str(directory / DRAFT)}
    return {"model": recipe.target.checkpoint, **args}


def texts(recipe: Recipe, more: Mapping[str, Any] = NOTHING) -> dict[str, str]:
    """File name -> content, of every file besides the draft's."""
    return {
        LLM_ARGS: llm_args_text(recipe, more),
        "probe.json": json.dumps(probe_input(recipe, more), indent=2, ensure_ascii=False) + "\n",
        "probe.py": (Path(__file__).parent / "probe.py").read_text(encoding="utf-8"),
        "serve.sh": serve_script(recipe),
        "bench.sh": bench_script(recipe),
    }


def llm_args_text(recipe: Recipe, more: Mapping[str, Any] = NOTHING) -> str:
    """YAML for the recipe's own release, with what is worth knowing as comments."""
    body = yaml.safe_dump(
        llm_args(recipe, more), sort_keys=False, allow_unicode=False, default_flow_style=False
    )
    head = [
        f"{recipe.name}: {recipe.speculation.drafter} on TensorRT-LLM {recipe.tensorrt_llm}",
        f"Made by spectool. Use it with {profile(recipe.tensorrt_llm).config_option}, in this "
        "directory; serve.sh and bench.sh",
        "first fit it to the installed release (probe.py).",
        *(f"- {note}" for note in recipe_notes(recipe)),
    ]
    return "".join(f"# {' '.join(line.splitlines())}\n" for line in head) + body


def probe_input(recipe: Recipe, more: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    """The same in words that no release decides: what the probe spells for the installed one."""
    plain = {k: v for k, v in llm_args(recipe).items() if k != "speculative_config"}
    return {
        "release": recipe.tensorrt_llm,
        "llm_args": plain,
        "optional": list(_OPTIONAL),
        "speculation": _wanted_speculation(recipe, more),
    }


def _wanted_speculation(recipe: Recipe, more: Mapping[str, Any]) -> dict[str, Any] | None:
    options, rules = recipe.speculation, profile(recipe.tensorrt_llm)
    wanted = {**wanted_config(recipe), **more, **recipe.pytorch.speculative_config}
    if not wanted_config(recipe):
        return None
    method = rules.methods[options.drafter]
    classes, kinds = _NAMES.get(options.drafter, ([method.class_name], [method.decoding_type]))
    draft = wanted.pop("speculative_model", None)
    for name in ("max_draft_len", "num_nextn_predict_layers"):
        wanted.pop(name, None)
    return {
        "drafter": options.drafter,
        "classes": classes,
        "decoding_types": kinds,
        "draft": draft,
        "max_draft_len": options.max_draft_len,
        "max_batch_size": recipe.engine.max_batch_size,
        "schedule": [[e.batch, e.draft_len] for e in options.draft_length.schedule],
        "fields": wanted,
        "other_names": _OTHER_NAMES,
        "optional": list(_OPTIONAL),
    }


def _told_by_draft(recipe: Recipe, draft: Path) -> dict[str, Any]:
    """Which target layers a head reads: older releases look at their own key only."""
    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    captured = (config.get("eagle_config") or {}).get(CAPTURED)
    if not captured:
        return {}
    target = small_files_here(recipe.target.checkpoint, recipe.target.revision)
    layers = target.config.get("num_hidden_layers") if target else None
    if problem := captured_problem(recipe, captured, layers):
        raise InputError(f"speculation.{CAPTURE_KEY}: {problem}")
    return captured_config(recipe, captured)


def _link_files(source: Path, target: Path) -> None:
    """The draft's files in the deployment, without a second copy where the disk can."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.name == MANIFEST or not path.is_file():
            continue
        try:
            os.link(path, target / path.name)
        except OSError:
            shutil.copyfile(path, target / path.name)

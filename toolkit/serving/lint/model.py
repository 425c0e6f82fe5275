"""Rules that one model's config and directory answer alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import did_you_mean
from toolkit.serving.lint.repository import Finding, Model
from toolkit.serving.pbtxt import map_keys, schema

# What can run a model: the wheel's python backend, and TensorRT-LLM's own where it is installed.
BACKENDS = ("python", "tensorrtllm")


def check_name(model: Model) -> Iterator[Finding]:
    name = model.config.name
    if name and name != model.name:
        yield model.error(f"name {name!r} must equal its directory's, {model.name!r}", name)


def check_versions(model: Model) -> Iterator[Finding]:
    if not model.versions:
        yield model.error("no version directory; a model needs one with a number for a name: 1/")
    policy = model.config.version_policy
    for wanted in policy.specific.versions:
        if wanted not in model.versions:
            yield model.error(f"version_policy asks for version {wanted}, which is not there")
    if policy.HasField("latest") and policy.latest.num_versions < 1:
        yield model.error("version_policy latest: num_versions must be 1 or more")


def check_code(model: Model) -> Iterator[Finding]:
    config = model.config
    if config.platform == "ensemble":
        if not config.HasField("ensemble_scheduling"):
            yield model.error("an ensemble without ensemble_scheduling")
        return
    if config.HasField("ensemble_scheduling"):
        yield model.error('ensemble_scheduling needs platform: "ensemble"')
    if not config.backend:
        yield model.error(f"no backend; known here: {', '.join(BACKENDS)}")
    elif config.backend not in BACKENDS:
        hint = did_you_mean(config.backend, BACKENDS)
        yield model.error(f"no backend is called {config.backend!r}{hint}", config.backend)
    elif config.backend == "python" and model.versions:
        yield from _check_python(model)


def _check_python(model: Model) -> Iterator[Finding]:
    for version in model.versions:
        path = model.directory / str(version) / (model.config.default_model_filename or "model.py")
        file = path.relative_to(model.directory.parent).as_posix()
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except FileNotFoundError:
            yield Finding("error", file, "missing; backend python runs it")
        except SyntaxError as error:
            yield Finding("error", file, f"not Python: {error.msg}", error.lineno, error.offset)
        except (OSError, ValueError) as error:
            yield Finding("error", file, f"not readable: {error}")


def check_tensors(model: Model) -> Iterator[Finding]:
    config = model.config
    if config.max_batch_size < 0:
        yield model.error(f"max_batch_size: {config.max_batch_size}, expected 0 or more")
    if not config.input or not config.output:
        yield model.error("a model needs inputs and outputs")
    for kind, tensors in (("input", config.input), ("output", config.output)):
        for name, times in Counter(tensor.name for tensor in tensors).items():
            if times > 1:
                same = len({t.SerializeToString() for t in tensors if t.name == name}) == 1
                # TensorRT-LLM's own ensemble has an output twice, word for word.
                say = model.warning if kind == "output" and same else model.error
                yield say(f"{kind} {name!r} is declared {times} times", name)
        for tensor in tensors:
            yield from _check_tensor(model, kind, tensor)


def _check_tensor(model: Model, kind: str, tensor: object) -> Iterator[Finding]:
    name, dims = getattr(tensor, "name", ""), list(getattr(tensor, "dims", ()))
    where = f"{kind} {name!r}"
    if not name:
        yield model.error(f"an {kind} without a name")
    if getattr(tensor, "data_type", 0) == schema().TYPE_INVALID:
        yield model.error(f"{where}: no data_type", name)
    if not dims:
        yield model.error(f"{where}: no dims", name)
    for dim in dims:
        if dim == 0 or dim < -1:
            yield model.error(f"{where}: dims {dims}: each is 1 or more, or -1 for any", name)
            break


def check_instances(model: Model) -> Iterator[Finding]:
    group_type = schema().ModelInstanceGroup
    for group in model.config.instance_group:
        if group.count < 0:
            yield model.error(f"instance_group: count {group.count}, expected 1 or more")
        on_gpu = group.kind == group_type.KIND_GPU or group.gpus
        if on_gpu and model.config.backend == "python" and not _has_gpu():
            yield model.warning("instance_group asks for a GPU; this machine has none")
        if group.count > 1 and "gpt_model_path" in model.parameters and model.ours:
            yield model.warning(
                f"instance_group: {group.count} instances, each with an engine and KV cache of its "
                "own; one serves many requests at once"
            )


def check_map_keys(model: Model) -> Iterator[Finding]:
    """Protobuf keeps the last of equal keys and says nothing."""
    for where, keys in map_keys(model.text).items():
        for key, times in Counter(keys).items():
            if times > 1:
                yield model.error(f"{where}: {key!r} is there {times} times", key)


def _has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()

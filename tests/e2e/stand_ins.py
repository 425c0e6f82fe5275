"""A repository for TensorRT-LLM engines, run where there are none.

Every config stays as it was written but for what makes an engine's model one of backend
`tensorrtllm`: it gets spectool's model code, which honours the same tensors, and an engine that
this machine can run. So the server wires what would be deployed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.serving.trt_engines import write_engine
from toolkit.bundled import bundled
from toolkit.engine.built import BuiltModels
from toolkit.recipe.schema import Recipe
from toolkit.serving.layouts import engine_vocab_size
from toolkit.serving.llm_names import llm_name
from toolkit.serving.pbtxt import parse, to_text
from toolkit.serving.repository import write_repository


def for_engines(
    built: BuiltModels,  # backend cpu
    directory: Path,
    *,
    version: str = "1.2.1",
    speculation: dict[str, object] | None = None,
) -> BuiltModels:
    """The same deployment as a recipe for engines; the engines hold nothing."""
    given = built.recipe.model_dump(mode="json")
    given |= {"backend": "tensorrt", "tensorrt_llm": version}
    given["speculation"] = speculation or given["speculation"]
    given["serve"]["tensorrt"]["text_instances"] = 2  # starts faster
    recipe = Recipe.model_validate(given)
    vocab_size = engine_vocab_size(built.engines["target"])
    engines = {
        role: write_engine(directory / f"{role}-engine", recipe, role, vocab_size=vocab_size)
        for role in recipe.models()
    }
    return BuiltModels(recipe, engines, {role: built.tokenizers[role] for role in engines})


def with_stand_ins(deployed: BuiltModels, built: BuiltModels, out: Path) -> Path:
    """The repository of `deployed` on the engines of `built`."""
    repository = write_repository(deployed, out)
    for role in deployed.engines:
        model = repository / llm_name(role)
        config = parse((model / "config.pbtxt").read_text())
        assert config.backend == "tensorrtllm"
        config.backend = "python"
        excluded = config.parameters["exclude_input_in_output"].string_value
        config.parameters.clear()
        parameters = {
            "gpt_model_path": str(built.engines[role]),
            "exclude_input_in_output": excluded,
            "role": role,
            "vocab_size": str(engine_vocab_size(built.engines["target"])),
        }
        for name, value in parameters.items():
            config.parameters[name].string_value = value
        (model / "config.pbtxt").write_text(to_text(config))
        shutil.copyfile(bundled("triton_repo") / "tensorrt_llm/1/model.py", model / "1/model.py")
    return repository

"""OpenVINO GenAI: a library, so the export is a short Python program around its pipeline."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.export.peer import Answer, Method, Option, Peer, comments
from toolkit.export.weights import bare_draft, gguf_file, is_gguf, local_name
from toolkit.recipe.schema import HeadSource, ModelSpec, Recipe
from toolkit.speculation.drafters.ngram import NGramSpeculation

TITLE = "OpenVINO GenAI"
WEIGHTS = {"w8a16": "int8", "w4a16": "int4"}
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "fp16"}

OPTIONS = {
    "LLMPipeline.models_path": Option("str", "converted directory, or GGUF file"),
    "LLMPipeline.device": Option("str", "CPU, GPU or NPU"),
    "LLMPipeline.prompt_lookup": Option("flag", "drafts are copied from the prompt"),
    "draft_model.models_path": Option("str", "converted directory"),
    "draft_model.device": Option("str", "CPU, GPU or NPU"),
    "SchedulerConfig.max_num_seqs": Option("int", "requests decoded together"),
    "SchedulerConfig.max_num_batched_tokens": Option("int", "tokens in one iteration"),
    "GenerationConfig.num_assistant_tokens": Option("int", "draft tokens of one step"),
    "GenerationConfig.max_ngram_size": Option("int", "longest n-gram to look for"),
    "GenerationConfig.max_new_tokens": Option("int", "output of one request"),
}


def _none(recipe: Recipe, answer: Answer) -> None:
    """Plain decoding takes no option."""


def _ngram(recipe: Recipe, answer: Answer) -> None:
    options = recipe.speculation
    assert isinstance(options, NGramSpeculation)
    answer.said |= {"max_matching_ngram_size", "min_matching_ngram_size"}
    answer.options["LLMPipeline.prompt_lookup"] = True
    answer.options["GenerationConfig.num_assistant_tokens"] = options.max_draft_len
    answer.options["GenerationConfig.max_ngram_size"] = options.max_matching_ngram_size
    if options.min_matching_ngram_size > 1:
        answer.notes.append(
            f"speculation.min_matching_ngram_size: {options.min_matching_ngram_size} cannot be said"
        )


def _draft(recipe: Recipe, answer: Answer) -> None:
    where, draft = bare_draft(recipe, answer, TITLE)
    if is_gguf(draft.checkpoint):
        answer.problems.append(
            f"{where}.checkpoint: {TITLE} reads GGUF as the target only; name safetensors"
        )
    answer.options["draft_model.models_path"] = _model(where, draft, recipe, answer)
    answer.options["draft_model.device"] = "CPU"
    answer.options["GenerationConfig.num_assistant_tokens"] = recipe.speculation.max_draft_len


def _model(where: str, model: ModelSpec | HeadSource, recipe: Recipe, answer: Answer) -> str:
    """The GGUF file as it is, or the directory that optimum-cli makes of safetensors."""
    if found := gguf_file(where, model, answer):
        return found
    name = f"{local_name(where, model)}-ov"
    spec = model if isinstance(model, ModelSpec) else recipe.target
    form = DTYPES[spec.dtype]
    if spec.quantization in WEIGHTS:
        form = WEIGHTS[spec.quantization]
    elif spec.quantization:
        answer.notes.append(
            f"{where}.quantization: {TITLE} has no {spec.quantization!r} (it has: "
            f"{', '.join(WEIGHTS)}); left out"
        )
    command = ["optimum-cli", "export", "openvino", "--model", model.checkpoint]
    command += ["--revision", model.revision] if model.revision else []
    command += ["--task", "text-generation-with-past", "--weight-format", form, name]
    answer.steps.append(command)
    return name


METHODS: Mapping[str, Method] = {
    "none": _none,
    "ngram": _ngram,
    "draft_target": _draft,
    "eagle3": _draft,
}


class OpenVino(Peer):
    """The LLM pipeline of openvino-genai."""

    name = "openvino"
    title = TITLE
    documented_in = "openvino-genai 2026.4 (LLMPipeline, SchedulerConfig, GenerationConfig)"
    options = OPTIONS
    methods = METHODS

    @classmethod
    def describe(cls, recipe: Recipe, answer: Answer) -> None:
        target, engine, options = recipe.target, recipe.engine, answer.options
        options["LLMPipeline.models_path"] = _model("target", target, recipe, answer)
        options["LLMPipeline.device"] = "CPU"
        options["SchedulerConfig.max_num_seqs"] = engine.max_batch_size
        if engine.max_num_tokens:
            options["SchedulerConfig.max_num_batched_tokens"] = engine.max_num_tokens
        options["GenerationConfig.max_new_tokens"] = engine.max_seq_len - engine.max_input_len
        ranks = target.parallel.tp * target.parallel.pp
        if ranks > 1:
            answer.problems.append(
                f"target.parallel: {ranks} ranks; {TITLE} runs a model on one device"
            )
        answer.notes.append(
            "engine.max_input_len: not limited; max_new_tokens is what max_seq_len leaves beside it"
        )
        answer.notes.append("serve: a library serves nobody; OpenVINO Model Server does")

    @classmethod
    def render(cls, recipe: Recipe, answer: Answer) -> str:
        def of(part: str) -> dict[str, object]:
            return {
                name.partition(".")[2]: value
                for name, value in answer.options.items()
                if name.startswith(f"{part}.")
            }

        pipeline, draft = of("LLMPipeline"), of("draft_model")
        arguments = [f"{pipeline.pop('models_path')!r}", f"{pipeline.pop('device')!r}"]
        arguments += ["scheduler_config=scheduler"]
        if draft:
            arguments.append(
                f"draft_model=openvino_genai.draft_model({draft['models_path']!r}, "
                f"{draft['device']!r})"
            )
        arguments += [f"{name}={value!r}" for name, value in pipeline.items()]
        lines = ["import sys", "", "import openvino_genai", ""]
        lines.append("scheduler = openvino_genai.SchedulerConfig()")
        lines += [f"scheduler.{name} = {value!r}" for name, value in of("SchedulerConfig").items()]
        lines += ["pipeline = openvino_genai.LLMPipeline("]
        lines += [f"    {argument}," for argument in arguments]
        lines += [")", "config = openvino_genai.GenerationConfig()"]
        lines += [f"config.{name} = {value!r}" for name, value in of("GenerationConfig").items()]
        lines += ["print(pipeline.generate(sys.argv[1], config))"]
        return comments(recipe, cls, answer) + "\n".join(lines) + "\n"

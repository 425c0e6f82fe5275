"""The recipe as types: what a user may write, with its defaults. (YAML and lines: load.py.)"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
)

from toolkit.recipe.guided import GuidedDecoding
from toolkit.recipe.objective import Objective
from toolkit.recipe.section import Section
from toolkit.recipe.serving import Serve
from toolkit.registry import DRAFTERS

BackendName = Literal["cpu", "tensorrt", "pytorch"]
DType = Literal["float32", "float16", "bfloat16"]


def expand_range(value: Any) -> Any:
    """`4`, `[2, 4]`, `"2..8"` and `"1,2,8..10"` as a tuple of integers; ascending, no repeats."""
    if isinstance(value, str):
        numbers: list[int] = []
        for part in value.split(","):
            low, dots, high = part.strip().partition("..")
            try:
                first, last = int(low), int(high if dots else low)
            except ValueError:
                raise ValueError(f"{part.strip()!r} is not a number or a range like 2..8") from None
            if last < first:
                raise ValueError(f"range {part.strip()!r} runs backwards; write {last}..{first}")
            if last - first > 4096:
                raise ValueError(f"range {part.strip()!r} has more than 4096 values")
            numbers.extend(range(first, last + 1))
        return tuple(sorted(set(numbers)))
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    return value


IntRange = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...],
    BeforeValidator(expand_range, json_schema_input_type=int | str | tuple[int, ...]),
    Field(min_length=1),
]


class Parallel(Section):
    """Over how many GPUs (ranks) a checkpoint is split."""

    tp: int = Field(1, ge=1, le=64, description="Tensor-parallel size.")
    pp: int = Field(1, ge=1, le=64, description="Pipeline-parallel size.")


class ModelSpec(Section):
    """One model: where its weights come from and in which form they are used."""

    checkpoint: str = Field(
        min_length=1,
        description="Directory of safetensors or of a TensorRT-LLM checkpoint, .gguf file, hub id "
        "(org/name) or pip:NAME==VERSION.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub id.")
    tokenizer: str | None = Field(
        None,
        min_length=1,
        description="Directory or hub id of the tokenizer; null: it lies with the checkpoint. "
        "TensorRT-LLM checkpoints have none.",
    )
    dtype: DType = "bfloat16"
    quantization: str | None = Field(
        None, description="null, or w8a16 (int8 weights), w4a16, fp8, awq."
    )
    parallel: Parallel = Parallel()
    layers: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, description="Use only these decoder layers of the checkpoint, in this order."
    )
    trust_remote_code: bool = False


class HeadSource(Section):
    """Weights of drafting heads that are converted together with the target's."""

    checkpoint: str = Field(
        min_length=1,
        description="Directory of the heads' weights and config.json, hub id, or bundled:PATH "
        "below spectool's own recipes.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub id.")


class ScheduleEntry(Section):
    """The draft length from one batch size on, up to the next entry's."""

    batch: int = Field(ge=1, description="Active requests.")
    draft_len: int = Field(ge=0, description="0: plain decoding.")


class StepTimeEntry(Section):
    """What one step takes whose requests all draft so many tokens."""

    batch: int = Field(ge=1, description="Requests in the step.")
    draft_len: int = Field(ge=0)
    ms: float = Field(gt=0, description="The whole step.")
    draft_ms: float = Field(0.0, ge=0, description="Drafting alone.")


class DraftLength(Section):
    """How many tokens to draft in each verify step, up to max_draft_len."""

    policy: Literal["fixed", "adaptive", "confidence", "schedule", "throughput"] = "fixed"
    threshold: float = Field(
        0.4,
        gt=0.0,
        lt=1.0,
        description="Confidence: draft on only while the drafter's likeliest token has at least "
        "this probability.",
    )
    min: int = Field(1, ge=1, description="Adaptive: never fewer than this.")
    schedule: tuple[ScheduleEntry, ...] = Field(
        (), description="Schedule: draft lengths by batch size, ascending."
    )
    step_times: tuple[StepTimeEntry, ...] = Field(
        (),
        description="Throughput: measured steps, with draft_len 0 for every batch size; "
        "tune --mode trace writes them.",
    )
    min_speed: float = Field(
        0.8,
        ge=0.0,
        le=1.0,
        description="Throughput: the part of its plain speed that every request keeps.",
    )


class Speculation(Section):
    """What every drafter has; each drafter's own options extend this class in its own file."""

    drafter: str
    max_draft_len: int = Field(4, ge=1, le=512)
    draft_length: DraftLength = DraftLength()

    @property
    def max_depth(self) -> int:
        """The most tokens that one verify step can accept; fewer than max_draft_len for trees."""
        return self.max_draft_len


class EngineLimits(Section):
    """Sizes that an engine is built for."""

    max_batch_size: int = Field(8, ge=1)
    max_input_len: int = Field(2048, ge=1)
    max_seq_len: int = Field(4096, ge=2)
    max_num_tokens: int | None = Field(None, ge=1)

    @field_validator("max_seq_len")
    @classmethod
    def _room_for_output(cls, value: int, info: Any) -> int:
        longest = info.data.get("max_input_len", 0)
        if value <= longest:
            raise ValueError(f"must be above max_input_len ({longest}): prompt plus output")
        return value


class TensorRT(Section):
    """Backend `tensorrt` only: how its engines are built and run."""

    flags: dict[str, bool | int | str] = Field(
        default={}, description="More trtllm-build flags for every engine, without dashes."
    )
    gpu: str | None = Field(
        None, description="GPU that the engines are for (H100, L40S, sm_90); null: the one here."
    )
    build_timeout_s: float = Field(
        14_400, gt=0, description="A build that takes longer is ended as hung."
    )
    kv_cache_fraction: float = Field(
        0.9, gt=0, lt=1, description="Of the GPU memory left after loading; shared by all engines."
    )


class AcceptanceGate(Section):
    """Ends speculation for good once too little of it is accepted; a restart brings it back."""

    window: int = Field(ge=1, description="Over the last N requests (up to 1.3) or iterations.")
    min_rate: float | None = Field(
        None, gt=0, le=1, description="Accepted over drafted tokens; late previews of 1.3 on."
    )
    min_accepted: float | None = Field(
        None, gt=0, description="Accepted tokens of a verify step; 1.2 and early previews of 1.3."
    )


class PyTorch(Section):
    """Backend `pytorch` only: what TensorRT-LLM's LLM API is told besides the drafter."""

    kv_cache_fraction: float = Field(
        0.9, gt=0, lt=1, description="Of the GPU memory left after loading."
    )
    block_reuse: bool = Field(True, description="Keep KV blocks of earlier prompts.")
    overlap_scheduler: bool | None = Field(None, description="null: on where the drafter may.")
    cuda_graphs: bool = True
    chunked_prefill: bool = False
    attention_backend: Literal["TRTLLM", "FLASHINFER", "VANILLA"] = "TRTLLM"
    guided_decoding: Literal["xgrammar", "llguidance"] | None = None
    greedy_only: bool = Field(
        False, description="Requests never sample: drafters may skip temperature and top-p."
    )
    rejection_sampling: bool = Field(
        False, description="Sampled drafts, accepted by rejection sampling; needs FlashInfer."
    )
    penalties: bool = Field(False, description="Requests may ask for repetition penalties.")
    max_concurrency: int | None = Field(
        None, ge=1, description="No speculation above this batch size."
    )
    acceptance_gate: AcceptanceGate | None = None
    speculative_config: dict[str, Any] = Field(
        default={}, description="More keys of speculative_config, in the release's own words."
    )
    llm_args: dict[str, Any] = Field(
        default={}, description="More keys of the LLM API, in the release's own words."
    )


class Sampling(Section):
    """How a token is drawn from the logits; temperature 0 is greedy."""

    temperature: float = Field(0.0, ge=0.0, le=100.0)
    top_k: int = Field(0, ge=0, description="0: no limit.")
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    seed: int | None = Field(None, ge=0, le=2**63 - 1)


class Tune(Section):
    """What `spectool tune` measures."""

    k: IntRange = (2, 3, 4, 5, 6, 7, 8)
    batch: IntRange = (1, 2, 4)
    prompts: dict[str, str] = Field(
        default={"chat_ko": "chat_ko", "code": "code", "edit": "edit"},
        min_length=1,
        description='Domain -> bundled prompt set or a JSONL file with one {"prompt": ...} a line.',
    )
    max_tokens: int = Field(64, ge=2, description="Output tokens of one request.")
    prompts_per_domain: int | None = Field(None, ge=1, description="Use only the first N prompts.")
    sampling: Sampling = Sampling()
    objective: Objective = Objective()


def _parse_speculation(value: Any, info: ValidationInfo) -> Any:
    """Parse the section with the options model of the drafter that it names."""
    if not isinstance(value, dict):
        return value  # pydantic says what it expected
    name = value.get("drafter")
    if not isinstance(name, str) or name not in DRAFTERS:
        return value  # Speculation itself reports a missing drafter; load.py an unknown one
    strict = (info.context or {}).get("strict")  # pydantic does not hand its own setting down
    return DRAFTERS[name].Options.model_validate(value, strict=strict, context=info.context)


class Recipe(Section):
    """One deployment: a target, its drafter, engine sizes, and how it is tuned and served."""

    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    backend: BackendName = "cpu"
    tensorrt_llm: str = Field("1.2.1", description="The release whose rules and spellings apply.")
    target: ModelSpec
    speculation: Annotated[SerializeAsAny[Speculation], BeforeValidator(_parse_speculation)]
    engine: EngineLimits = EngineLimits()
    tensorrt: TensorRT = TensorRT()
    pytorch: PyTorch = PyTorch()
    guided_decoding: GuidedDecoding | None = None
    tune: Tune = Tune()
    serve: Serve = Serve()

    def models(self) -> dict[str, ModelSpec]:
        """Role -> model to convert and build: `target`, then whatever the drafter needs."""
        return {
            "target": self.target,
            **DRAFTERS[self.speculation.drafter].models(self.speculation, self.target),
        }

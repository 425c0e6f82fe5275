"""Stand-ins for tensorrt_llm.llmapi.llm_args of several releases, as strict as the real ones.

Written from the documented fields: what a class forbids here, the real one forbids. `old` is the
shape up to 1.2 (a table of decoding types), `new` the later one (a literal field), `unknown` a
release nobody has seen, with words of its own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

MODEL = AliasChoices("speculative_model", "speculative_model_dir")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class LlmArgs(Strict):
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    max_batch_size: int = 2048
    max_input_len: int = 1024
    max_seq_len: int | None = None
    kv_cache_config: dict = {}
    cuda_graph_config: dict | None = None
    disable_overlap_scheduler: bool = False
    enable_iter_perf_stats: bool = False
    speculative_config: dict | None = None


def old(draft_target: str) -> SimpleNamespace:
    """Up to 1.2: `from_dict` and a table. `draft_target` is its word for that drafter."""

    class DecodingBaseConfig(Strict):
        max_draft_len: int | None = None
        speculative_model_dir: str | None = None

        @classmethod
        def from_dict(cls, data: dict):
            table = {
                "MTP": MTPDecodingConfig,
                "Eagle": EagleDecodingConfig,
                draft_target: DraftTargetDecodingConfig,
            }
            kind = data.pop("decoding_type")
            if kind not in table:
                raise ValueError(f"Invalid decoding type: {kind}")
            return table[kind](**data)

    class EagleDecodingConfig(DecodingBaseConfig):
        decoding_type: ClassVar[str] = "Eagle"
        eagle3_one_model: bool = True

    class DraftTargetDecodingConfig(DecodingBaseConfig):
        decoding_type: ClassVar[str] = "Draft_Target"  # not what the table says, as upstream had it

    class MTPDecodingConfig(DecodingBaseConfig):
        decoding_type: ClassVar[str] = "MTP"
        num_nextn_predict_layers: int = 1
        BEGIN_THINKING_PHASE_TOKEN: int = 128798

    return SimpleNamespace(TorchLlmArgs=LlmArgs, **{k: v for k, v in locals().items() if "C" in k})


def new(schedule_keys: Literal["at least", "at most"]) -> SimpleNamespace:
    """From 1.3 on: decoding_type is a literal field, speculative_model has an alias."""

    class DecodingBaseConfig(Strict):
        max_draft_len: int | None = Field(None, ge=0)
        speculative_model: str | None = Field(None, validation_alias=MODEL)
        draft_len_schedule: dict[int, int] | None = None

        @model_validator(mode="after")
        def _schedule(self):
            schedule = self.draft_len_schedule
            if schedule:
                first = 1 if schedule_keys == "at least" else min(schedule)
                if schedule.get(first) != self.max_draft_len:
                    raise ValueError(f"draft_len_schedule must have {first}: max_draft_len")
            return self

    class Eagle3DecodingConfig(DecodingBaseConfig):
        decoding_type: Literal["Eagle3"] = "Eagle3"
        use_dynamic_tree: bool = False

    class DraftTargetDecodingConfig(DecodingBaseConfig):
        decoding_type: Literal["Draft_Target"] = "Draft_Target"

    class MTPDecodingConfig(DecodingBaseConfig):
        decoding_type: Literal["MTP"] = "MTP"
        num_nextn_predict_layers: int | None = None
        begin_thinking_phase_token: int = 128798

    return SimpleNamespace(TorchLlmArgs=LlmArgs, **{k: v for k, v in locals().items() if "C" in k})


def unknown() -> SimpleNamespace:
    """A release with words of its own: it must be refused with a sentence, not a traceback."""

    class Eagle3DecodingConfig(Strict):
        decoding_type: Literal["EagleThree"] = "EagleThree"
        max_draft_len: int | None = None
        draft_checkpoint: str | None = None

    return SimpleNamespace(TorchLlmArgs=LlmArgs, Eagle3DecodingConfig=Eagle3DecodingConfig)

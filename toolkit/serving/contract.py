"""The tensors and parameters of TensorRT-LLM's Triton models, as far as our models honour them.

Names, types and dims are those of TensorRT-LLM's `inflight_batcher_llm` templates (0.20 to 1.2), so
that the wiring around our models is the wiring around its C++ backend. One line of a table:

    name  TYPE[dims]  [opt]  [reshape]  [ragged]

`opt`: a request may leave it out; `reshape`: dims [1] outside, [] inside; `ragged`: may differ in
length within a batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE = re.compile(
    r"(?P<name>\w+)\s+(?P<dtype>[A-Z]+[0-9]*)\[(?P<dims>[-0-9,]*)\](?P<flags>(\s+\w+)*)$"
)
_FLAGS = {"opt", "reshape", "ragged"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output; dims without the batch dimension, -1 for any length."""

    name: str
    dtype: str  # Triton's name without TYPE_: INT32, FP32, BOOL, STRING...
    dims: tuple[int, ...]
    optional: bool = False
    reshape: bool = False
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key of a model's `parameters`; a required one must be there and not empty."""

    name: str
    # text, path (of a directory), paths (JSON, by role), json, number (from 1), count (from 0),
    # numbers (1,2), groups (0,1;2), fraction (0..1), flag, role, model, one of a|b
    kind: str
    required: bool = False


@dataclass(frozen=True)
class Contract:
    """What one kind of model takes, gives and is configured with."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...]
    decoupled: bool

    def input(self, name: str) -> Tensor | None:
        return next((tensor for tensor in self.inputs if tensor.name == name), None)

    def output(self, name: str) -> Tensor | None:
        return next((tensor for tensor in self.outputs if tensor.name == name), None)


def tensors(table: str) -> tuple[Tensor, ...]:
    """The tensors of a table; ValueError for a line that is none."""
    return tuple(_parse(table))


def _parse(table: str) -> Iterator[Tensor]:
    for line in filter(None, map(str.strip, table.splitlines())):
        match = _LINE.match(line)
        flags = set(match["flags"].split()) if match else set()
        if match is None or not flags <= _FLAGS:
            raise ValueError(f"not a tensor line: {line!r}")
        dims = tuple(int(dim) for dim in match["dims"].split(",") if dim)
        yield Tensor(
            match["name"],
            match["dtype"],
            dims,
            "opt" in flags,
            "reshape" in flags,
            "ragged" in flags,
        )


def _parameters(**kinds: str) -> tuple[Parameter, ...]:
    """`kind` may be left out, `kind!` may not."""
    return tuple(
        Parameter(name, kind.rstrip("!"), kind.endswith("!")) for name, kind in kinds.items()
    )


_PERF_OUTPUTS = """
    acceptance_rate              FP32[1]
    total_accepted_draft_tokens  INT32[1]
    total_draft_tokens           INT32[1]
"""

PREPROCESSING = Contract(
    inputs=tensors("""
        QUERY               STRING[1]
        REQUEST_OUTPUT_LEN  INT32[1]
        STOP_WORDS_DICT     STRING[-1]  opt
        END_ID              INT32[1]    opt
    """),
    outputs=tensors("""
        INPUT_ID            INT32[-1]
        REQUEST_INPUT_LEN   INT32[1]
        STOP_WORDS_IDS      INT32[2,-1]
        REQUEST_OUTPUT_LEN  INT32[-1]
        OUT_END_ID          INT32[1]
    """),
    parameters=_parameters(tokenizer_dir="path!", add_special_tokens="flag", max_seq_len="number"),
    decoupled=False,
)

POSTPROCESSING = Contract(
    inputs=tensors("""
        TOKENS_BATCH     INT32[-1,-1]
        SEQUENCE_LENGTH  INT32[-1]
    """),
    outputs=tensors("OUTPUT STRING[-1]"),
    parameters=_parameters(tokenizer_dir="path!", skip_special_tokens="flag"),
    decoupled=False,
)

TENSORRT_LLM = Contract(
    inputs=tensors("""
        input_ids                 INT32[-1]     opt  ragged
        input_lengths             INT32[1]      reshape
        request_output_len        INT32[1]      reshape
        draft_input_ids           INT32[-1]     opt  ragged
        draft_logits              FP32[-1,-1]   opt  ragged
        end_id                    INT32[1]      opt  reshape
        stop_words_list           INT32[2,-1]   opt  ragged
        temperature               FP32[1]       opt  reshape
        runtime_top_k             INT32[1]      opt  reshape
        runtime_top_p             FP32[1]       opt  reshape
        min_tokens                INT32[1]      opt  reshape
        seed                      UINT64[1]     opt  reshape
        return_generation_logits  BOOL[1]       opt  reshape
        return_perf_metrics       BOOL[1]       opt  reshape
        exclude_input_in_output   BOOL[1]       opt  reshape
        stop                      BOOL[1]       opt  reshape
        streaming                 BOOL[1]       opt  reshape
        guided_decoding_guide_type  STRING[1]   opt  ragged
        guided_decoding_guide       STRING[1]   opt  ragged
    """),
    outputs=tensors(
        """
        output_ids         INT32[-1,-1]
        sequence_length    INT32[-1]
        generation_logits  FP32[-1,-1,-1]
        """
        + _PERF_OUTPUTS
    ),
    parameters=_parameters(
        gpt_model_path="path!",
        exclude_input_in_output="flag",
        role="role!",
        tokenizer_dir="path",
        vocab_size="number",
        max_queue_size="number",
        kv_cache_bytes="number",
        cpu_threads="number",
    ),
    decoupled=False,
)

_TEXT_INPUTS = """
    text_input               STRING[1]
    max_tokens               INT32[1]
    stop_words               STRING[-1]  opt
    exclude_input_in_output  BOOL[1]     opt
    end_id                   INT32[1]    opt
    top_k                    INT32[1]    opt
    top_p                    FP32[1]     opt
    temperature              FP32[1]     opt
    seed                     UINT64[1]   opt
"""
_SPECULATIVE_INPUTS = (
    _TEXT_INPUTS
    + """
    return_perf_metrics      BOOL[1]     opt  reshape
    stream                   BOOL[1]     opt
    num_draft_tokens         INT32[1]    opt
    return_num_output_tokens BOOL[1]     opt  reshape
    guided_decoding_guide_type STRING[1] opt
    guided_decoding_guide      STRING[1] opt
"""
)
_TEXT_OUTPUTS = (
    """
    text_output        STRING[-1]
    num_output_tokens  INT32[1]
    """
    + _PERF_OUTPUTS
)

TENSORRT_LLM_BLS = Contract(
    inputs=tensors(_SPECULATIVE_INPUTS + "use_draft_logits BOOL[1] opt reshape"),
    outputs=tensors(_TEXT_OUTPUTS),
    parameters=_parameters(
        tensorrt_llm_model_name="model!",
        tensorrt_llm_draft_model_name="model",
        tokenizer_dir="path!",
        speculation="json!",
        max_seq_len="number!",
        guided_decoding="json",
        max_queue_size="number",
        # Only in front of TensorRT-LLM engines:
        tensorrt_llm_release="text",
        use_draft_logits="flag",
        speculative_decoding_fast_logits="flag",
    ),
    decoupled=True,
)

# Not one of TensorRT-LLM's: the whole loop in one model, asked in the words of its BLS model.
INPROCESS = Contract(
    inputs=tensors(_SPECULATIVE_INPUTS),
    outputs=tensors(_TEXT_OUTPUTS),
    parameters=_parameters(
        recipe="json!",
        engine_dirs="paths!",
        tokenizer_dirs="paths!",
        max_queue_size="number",
        cpu_threads="number",
    ),
    decoupled=True,
)

ENSEMBLE = Contract(
    inputs=tensors(
        _TEXT_INPUTS
        + """
        guided_decoding_guide_type  STRING[1]  opt  ragged
        guided_decoding_guide       STRING[1]  opt  ragged
        """
    ),
    outputs=tensors("text_output STRING[-1]"),
    parameters=(),
    decoupled=False,
)

CONTRACTS = {
    "preprocessing": PREPROCESSING,
    "postprocessing": POSTPROCESSING,
    "tensorrt_llm": TENSORRT_LLM,
    "tensorrt_llm_bls": TENSORRT_LLM_BLS,
    "ensemble": ENSEMBLE,
    "spectool": INPROCESS,
}

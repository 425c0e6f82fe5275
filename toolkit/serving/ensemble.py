"""The steps of a plain ensemble, text to text through one LLM model, as TensorRT-LLM wires them."""

from __future__ import annotations

from collections.abc import Mapping

# A model, its inputs and its outputs: tensor of the model -> tensor of the ensemble.
Step = tuple[str, Mapping[str, str], Mapping[str, str]]


def plain_steps(
    inputs: Mapping[str, str],  # of tensorrt_llm, besides what preprocessing makes
    outputs: Mapping[str, str],  # of tensorrt_llm, besides its tokens
) -> tuple[Step, ...]:
    """preprocessing -> tensorrt_llm -> postprocessing."""
    return (
        (
            "preprocessing",
            {
                "QUERY": "text_input",
                "REQUEST_OUTPUT_LEN": "max_tokens",
                "STOP_WORDS_DICT": "stop_words",
                "END_ID": "end_id",
            },
            {
                "INPUT_ID": "_INPUT_ID",
                "REQUEST_INPUT_LEN": "_REQUEST_INPUT_LEN",
                "REQUEST_OUTPUT_LEN": "_REQUEST_OUTPUT_LEN",
                "STOP_WORDS_IDS": "_STOP_WORDS_IDS",
                "OUT_END_ID": "_END_ID",
            },
        ),
        (
            "tensorrt_llm",
            {
                "input_ids": "_INPUT_ID",
                "input_lengths": "_REQUEST_INPUT_LEN",
                "request_output_len": "_REQUEST_OUTPUT_LEN",
                "stop_words_list": "_STOP_WORDS_IDS",
                "end_id": "_END_ID",
                **inputs,
            },
            {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH", **outputs},
        ),
        (
            "postprocessing",
            {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"},
            {"OUTPUT": "text_output"},
        ),
    )

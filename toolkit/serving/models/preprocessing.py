"""`preprocessing`: text to tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from toolkit.errors import InputError, SpectoolError
from toolkit.serving.prompt import prompt_tokens
from toolkit.serving.text_request import Fields
from toolkit.serving.triton_io import Settings, arrays_of, error_response, response, tensor


class TritonPythonModel:
    """Stateless; a request is answered at once."""

    def initialize(self, args: dict[str, str]) -> None:
        from toolkit.checkpoint.tokenizer import load_tokenizer

        settings = Settings(args)
        self._tokenizer = load_tokenizer(settings.path("tokenizer_dir"))
        self._max_seq_len = settings.optional_number("max_seq_len")
        self._add_special = settings.flag("add_special_tokens", True)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        fields = Fields(arrays_of(request))
        text = fields.text("QUERY")
        length = fields.integer("REQUEST_OUTPUT_LEN", 1, 2**31 - 1)
        end_id = fields.integer("END_ID", -1, 2**31 - 1)
        words = fields.texts("STOP_WORDS_DICT")
        if fields.problems or text is None:
            return error_response(InputError("; ".join(fields.problems)))
        try:
            ids = prompt_tokens(
                self._tokenizer,
                text,
                add_special=self._add_special,
                max_seq_len=self._max_seq_len,
            )
        except SpectoolError as error:
            return error_response(error)
        if end_id is None:
            end_id = min(self._tokenizer.eos_ids, default=-1)
        return response(
            tensor("INPUT_ID", [ids], np.int32),
            tensor("REQUEST_INPUT_LEN", [[len(ids)]], np.int32),
            tensor("STOP_WORDS_IDS", [self._stop_words(words)], np.int32),
            tensor("REQUEST_OUTPUT_LEN", [[length]], np.int32),
            tensor("OUT_END_ID", [[end_id]], np.int32),
        )

    def _stop_words(self, words: tuple[str, ...]) -> list[list[int]]:  # [2, N]
        """The words' tokens one after the other, and where each word ends; -1 fills up."""
        flat: list[int] = []
        ends = []
        for word in words:
            flat += self._tokenizer.encode(word, add_special=False)
            ends.append(len(flat))
        width = max(len(flat), 1)
        return [flat + [0] * (width - len(flat)), ends + [-1] * (width - len(ends))]

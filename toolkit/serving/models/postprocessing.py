"""`postprocessing`: tokens to text."""

from __future__ import annotations

from typing import Any

from toolkit.serving.triton_io import Settings, arrays_of, response, text_tensor


class TritonPythonModel:
    """Stateless; a request is answered at once."""

    def initialize(self, args: dict[str, str]) -> None:
        from toolkit.checkpoint.tokenizer import load_tokenizer

        settings = Settings(args)
        self._tokenizer = load_tokenizer(settings.path("tokenizer_dir"))
        self._skip_special = settings.flag("skip_special_tokens", True)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        arrays = arrays_of(request)
        tokens = arrays["TOKENS_BATCH"].reshape(-1)
        length = int(arrays["SEQUENCE_LENGTH"].reshape(-1)[0])
        text = self._tokenizer.decode(tokens[:length].tolist(), skip_special=self._skip_special)
        return response(text_tensor("OUTPUT", text))

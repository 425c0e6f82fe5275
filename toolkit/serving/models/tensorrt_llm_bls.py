"""`tensorrt_llm_bls`: text in, text out, target and draft models behind it (or a local drafter)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from time import perf_counter
from typing import Any

from toolkit.errors import InputError, SpectoolError
from toolkit.recipe.guided import GuidedDecoding
from toolkit.recipe.release import release
from toolkit.recipe.schema import Speculation
from toolkit.registry import DRAFTERS
from toolkit.serving.bls import BlsLoop, DraftSource, DraftUnavailableError, LocalDraft
from toolkit.serving.counters import (
    DRAFT_FAILURES,
    DRAFT_SECONDS,
    SPECULATION,
    VERIFY_SECONDS,
    RequestGauge,
    SpeculationCounters,
)
from toolkit.serving.failures import CancelledError, queue_full, unexpected
from toolkit.serving.llm import DEFAULT_QUEUE_SIZE
from toolkit.serving.prompt import check_size
from toolkit.serving.remote import OWN, Dialect, RemoteDraft, RemoteTarget, tokenize
from toolkit.serving.replies import ReplyBuilder
from toolkit.serving.tensorrt.tensors import names
from toolkit.serving.text_request import TextRequest, text_request
from toolkit.serving.triton_io import Metrics, ReplySender, Settings, arrays_of
from toolkit.speculation.draft_length import draft_length_policy
from toolkit.speculation.grammar import guide_of
from toolkit.speculation.interfaces import Drafter
from toolkit.speculation.request import Request

# Between two calls a cancelled request is noticed; without a stream nobody waits for single tokens.
BURST = 8


class TritonPythonModel:
    """One thread per request at work; as many as the engine has sequences."""

    def initialize(self, args: dict[str, str]) -> None:
        from toolkit.checkpoint.tokenizer import load_tokenizer

        settings = Settings(args)
        self._tokenizer = load_tokenizer(settings.path("tokenizer_dir"))
        self._target = settings.text("tensorrt_llm_model_name")
        self._draft = settings.text("tensorrt_llm_draft_model_name")
        self._dialect = _dialect(settings)
        self._by_logits = settings.flag("use_draft_logits", not self._dialect.engines)
        given = settings.text("guided_decoding")
        self._guide = guide_of(GuidedDecoding.model_validate_json(given)) if given else None
        options = json.loads(settings.text("speculation"))
        self._drafter = DRAFTERS[options["drafter"]]
        self._options: Speculation = self._drafter.Options.model_validate(options)
        if self._max_draft_len and not self._draft:
            self._local_drafter()  # what it reads from files is read, or refused, here
        self._loop = BlsLoop(
            policy=draft_length_policy(self._options),
            max_seq_len=settings.number("max_seq_len", 0),
            decode=self._tokenizer.decode,
        )
        metrics = Metrics(settings.model)
        self._counters = SpeculationCounters(metrics.increment, metrics.observe)
        self._counters.start(*SPECULATION, DRAFT_FAILURES, DRAFT_SECONDS, VERIFY_SECONDS)
        self._requests = RequestGauge(metrics.set_requests, settings.max_batch_size)
        self._queue_size = settings.number("max_queue_size", DEFAULT_QUEUE_SIZE)
        self._places = BoundedSemaphore(settings.max_batch_size + self._queue_size)
        self._threads = ThreadPoolExecutor(settings.max_batch_size, "request")

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = ReplySender(request)
            try:
                wanted = text_request(arrays_of(request), max_draft_len=self._max_draft_len)
                self._check_logits(wanted)
                self._check_guide(wanted)
            except SpectoolError as error:
                sender.fail(error)
                continue
            if self._places.acquire(blocking=False):
                self._requests.change(1)
                self._threads.submit(self._serve, wanted, sender, perf_counter())
            else:
                sender.fail(queue_full(self._queue_size))

    def finalize(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def _max_draft_len(self) -> int:
        return 0 if self._options.drafter == "none" else self._options.max_draft_len

    def _serve(self, wanted: TextRequest, sender: ReplySender, arrived: float) -> None:
        try:
            self._generate(wanted, sender, arrived)
        except Exception as error:  # noqa: BLE001 - the client must hear of it, whatever it was
            sender.fail(unexpected(error))
        finally:
            self._places.release()
            self._requests.change(-1)
            self._counters.flush()

    def _generate(self, wanted: TextRequest, sender: ReplySender, arrived: float) -> None:
        if sender.cancelled():
            sender.fail(CancelledError())
            return
        check_size(self._tokenizer, wanted.text, self._loop.max_seq_len)
        prompt = tokenize(wanted.text, wanted.max_tokens)
        guide = wanted.guide or self._guide
        grammar = self._tokenizer.grammar(guide) if guide else None
        request = wanted.tokens(prompt, self._tokenizer.eos_ids, grammar)
        reply = ReplyBuilder(
            wanted, sender, self._tokenizer.stream(), self._counters, arrived=arrived
        )
        chunks = self._loop.run(
            request,
            RemoteTarget(self._target, request, self._dialect),
            self._source(wanted, request),
            burst=1 if wanted.stream else BURST,
            cancelled=sender.cancelled,
            draft_failed=self._draft_failed,
            spent=self._counters.spend,
        )
        for chunk in chunks:
            reply.take(chunk)

    def _source(self, wanted: TextRequest, request: Request) -> DraftSource | None:
        """Where this request's drafts come from; None: it decodes plainly."""
        if not self._max_draft_len or request.draft_len == 0:
            return None
        if self._draft:
            chosen = wanted.use_draft_logits
            with_logits = self._by_logits if chosen is None else chosen
            return RemoteDraft(self._draft, request, self._dialect, with_logits=with_logits)
        return LocalDraft(self._local_drafter(), request.prompt, request.sampling, request.grammar)

    def _local_drafter(self) -> Drafter:
        drafter: Drafter = self._drafter.create(self._options, {})
        drafter.prepare(self._tokenizer)
        return drafter

    def _check_logits(self, wanted: TextRequest) -> None:
        """Engines hand logits over only if target and draft were made for it."""
        if wanted.use_draft_logits and self._dialect.engines and not self._by_logits:
            raise InputError(
                "use_draft_logits: this deployment accepts by tokens "
                "(the recipe's speculation.use_draft_logits)"
            )

    def _check_guide(self, wanted: TextRequest) -> None:
        if wanted.guide and self._dialect.engines:
            raise InputError(
                "guided_decoding_guide_type: an engine begins its grammar anew with every call, "
                "and this deployment calls it for every step; ask the ensemble, which decodes "
                "plainly"
            )

    def _draft_failed(self, error: DraftUnavailableError) -> None:
        import triton_python_backend_utils as pb_utils

        pb_utils.Logger.log_error(f"going on without a draft: {error}")
        self._counters.count(DRAFT_FAILURES)


def _dialect(settings: Settings) -> Dialect:
    number = release(settings.text("tensorrt_llm_release"))
    if number is None:
        return OWN
    fast_logits = settings.flag("speculative_decoding_fast_logits", False)
    return Dialect(names(number).seed, engines=True, fast_logits=fast_logits)

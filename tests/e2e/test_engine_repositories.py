"""Repositories for TensorRT-LLM engines on a real server, with stand-ins for the engines.

Greedy text is the loop's. Sampled text is that of the loop with a seed of its own for every call,
as engines need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.conftest import Deployment, loop_output
from tests.e2e.stand_ins import for_engines, with_stand_ins
from tests.e2e.test_layouts import over_grpc, text, wait_until_free
from tests.serving.fakes import FakeServedDraft, FakeServedTarget
from tests.serving.test_ports import free_ports
from toolkit.backends.runtime import Runtime
from toolkit.engine.built import BuiltModels
from toolkit.errors import RunError
from toolkit.serving.bls import BlsLoop
from toolkit.serving.calls import Call
from toolkit.serving.client import Ask, generate, generate_stream
from toolkit.serving.llm import CallEngine
from toolkit.serving.remote import call_seed
from toolkit.serving.repository import repository_manifest
from toolkit.serving.server import Address, TritonServer
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import Request
from toolkit.speculation.sampling import Role

pytestmark = pytest.mark.triton

PROMPTS = ("Hello, world", "abcabcabcabc", "the quick brown fox", "1 2 3 4 5")
BY_LOGITS = {"use_draft_logits": True}
HEADS = {"checkpoint": "org/heads"}


def serve(deployed: BuiltModels, built: BuiltModels, directory: Path) -> Iterator[Deployment]:
    repository = with_stand_ins(deployed, built, directory / "repo")
    manifest = repository_manifest(repository)
    assert manifest is not None
    address = Address("127.0.0.1", *free_ports(3))
    with TritonServer(repository, list(manifest["models"]), address, timeout_s=60) as server:
        yield Deployment(address, manifest["entry"], repository, server.pid)


@pytest.fixture(scope="module")
def draft_target(built, tmp_path_factory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("draft-target")
    speculation = built.recipe.speculation.model_dump(mode="json") | BY_LOGITS
    yield from serve(for_engines(built, directory, speculation=speculation), built, directory)


@pytest.fixture(scope="module")
def old_by_tokens(built, tmp_path_factory) -> Iterator[Deployment]:
    """The names of release 0.16, and drafts accepted by tokens."""
    directory = tmp_path_factory.mktemp("old")
    yield from serve(for_engines(built, directory, version="0.16.0"), built, directory)


@pytest.fixture(scope="module")
def ngram(built, tmp_path_factory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("ngram")
    speculation = {"drafter": "ngram", "max_draft_len": 4}
    yield from serve(for_engines(built, directory, speculation=speculation), built, directory)


@pytest.fixture(scope="module")
def medusa(built, tmp_path_factory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("medusa")
    speculation = {"drafter": "medusa", "heads": HEADS}
    yield from serve(for_engines(built, directory, speculation=speculation), built, directory)


@pytest.fixture(params=["draft_target", "old_by_tokens", "ngram"])
def behind_bls(request) -> Deployment:
    found: Deployment = request.getfixturevalue(request.param)
    return found


class FakeEngine:
    """A served model that gets a seed of its own with every call."""

    role: Role
    request: Request

    def _call(self, tokens, length, **more) -> Call:
        call = super()._call(tokens, length, **more)  # type: ignore[misc]
        seed = call_seed(call.sampling.seed, len(tokens), self.role)
        return replace(call, sampling=replace(call.sampling, seed=seed))


class FakeEngineTarget(FakeEngine, FakeServedTarget):
    role = Role.EMIT


class FakeEngineDraft(FakeEngine, FakeServedDraft):
    role = Role.DRAFT


def engine_text(runtime: Runtime, ask: Ask, *, logits: bool) -> str:
    """What target and draft engines say to a sampled request."""
    sampling = SamplingParams(
        ask.temperature or 0.0, ask.top_k or 0, ask.top_p or 1.0, ask.seed or 0
    )
    prompt = tuple(runtime.tokenizer.encode(ask.text_input))
    request = Request(prompt, ask.max_tokens, sampling, runtime.tokenizer.eos_ids)
    target = CallEngine(runtime.target, Role.EMIT)
    draft = CallEngine(runtime.models["draft"], Role.DRAFT)
    loop = BlsLoop(Fixed(4), 256, runtime.tokenizer.decode)
    chunks = loop.run(
        request,
        FakeEngineTarget(target, request),
        FakeEngineDraft(draft, request, logits=logits),
    )
    tokens = [token for chunk in chunks for token in chunk.tokens]
    target.close()
    draft.close()
    return runtime.tokenizer.decode(tokens)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_the_loops_streaming_or_not(behind_bls, runtime, prompt):
    ask = Ask(text_input=prompt, max_tokens=40)
    wanted, _ = loop_output(runtime, ask)
    http = behind_bls.address.http
    assert generate(http, behind_bls.model, ask).text == wanted
    streamed = over_grpc(behind_bls, ask)
    assert text(streamed) == wanted
    assert len(streamed) > 3
    assert text(list(generate_stream(http, behind_bls.model, ask))) == wanted
    assert generate(http, behind_bls.model, replace(ask, num_draft_tokens=0)).text == wanted


@pytest.mark.parametrize("seed", range(6))
def test_sampled_text_is_the_loops_with_a_seed_for_every_call(draft_target, runtime, seed):
    ask = Ask(
        text_input=PROMPTS[seed % 4], max_tokens=40, temperature=0.9, top_k=20, top_p=0.95,
        seed=seed,
    )  # fmt: skip
    got = generate(draft_target.address.http, draft_target.model, ask).text
    assert got == engine_text(runtime, ask, logits=True)
    assert text(over_grpc(draft_target, ask)) == got


def test_drafts_are_accepted_and_counted(draft_target, runtime):
    ask = Ask(text_input=PROMPTS[0], max_tokens=50, end_id=-1, return_perf_metrics=True)
    _, output = loop_output(runtime, ask)
    answer = generate(draft_target.address.http, draft_target.model, ask)
    assert answer.total_draft_tokens == output.stats.draft_tokens > 0
    assert answer.total_accepted_draft_tokens == output.stats.accepted_tokens > 0


def test_logits_are_refused_where_the_recipe_has_none(old_by_tokens):
    ask = Ask(text_input="Hello", max_tokens=8, use_draft_logits=True)
    with pytest.raises(RunError, match="accepts by tokens"):
        generate(old_by_tokens.address.http, old_by_tokens.model, ask)


def test_stop_words_and_the_prompt_in_the_text(behind_bls, runtime):
    whole, _ = loop_output(runtime, Ask(text_input=PROMPTS[2], max_tokens=60))
    stop = whole[9:11]
    ask = Ask(
        text_input=PROMPTS[2], max_tokens=60, stop_words=(stop,), exclude_input_in_output=False
    )
    wanted = PROMPTS[2] + whole[: whole.find(stop)]
    assert generate(behind_bls.address.http, behind_bls.model, ask).text == wanted


def test_many_requests_at_once_each_get_their_own_text(behind_bls, runtime):
    asks = [
        Ask(
            text_input=f"{PROMPTS[i % 4]} {i}",
            max_tokens=20 + i,
            num_draft_tokens=(None, 0, 2)[i % 3],
        )
        for i in range(16)
    ]
    wanted = [loop_output(runtime, ask)[0] for ask in asks]
    with ThreadPoolExecutor(16) as threads:
        got = list(threads.map(lambda ask: text(over_grpc(behind_bls, ask)), asks))
    assert got == wanted
    wait_until_free(behind_bls)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_ensemble_of_an_engine_that_drafts_by_itself_serves_its_text(medusa, runtime, prompt):
    assert medusa.model == "ensemble"
    ask = Ask(text_input=prompt, max_tokens=30)
    wanted, _ = loop_output(runtime, ask)
    assert generate(medusa.address.http, medusa.model, ask).text == wanted
    with_prompt = replace(ask, exclude_input_in_output=False)
    assert generate(medusa.address.http, medusa.model, with_prompt).text == prompt + wanted


def test_the_ensemble_hands_the_engines_counts_on(medusa):
    ask = Ask(text_input="Hello", max_tokens=8, return_perf_metrics=True)
    answer = generate(medusa.address.http, medusa.model, ask)
    assert (answer.total_draft_tokens, answer.total_accepted_draft_tokens) == (0, 0)


def test_the_ensemble_beside_a_bls_decodes_plainly(behind_bls, runtime):
    ask = Ask(text_input=PROMPTS[0], max_tokens=20)
    got = generate(behind_bls.address.http, "ensemble", ask).text
    assert got == loop_output(runtime, ask)[0]

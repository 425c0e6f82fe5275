"""Both layouts on a real Triton server say what the runtime's own loop says."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tests.e2e.conftest import Deployment, loop_output
from toolkit.errors import RunError
from toolkit.serving.client import Answer, Ask, GrpcStream, generate, generate_stream, metrics

pytestmark = pytest.mark.triton

PROMPTS = ("Hello, world", "abcabcabcabc", "the quick brown fox", "1 2 3 4 5")
SAMPLED = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "seed": 11}


def over_grpc(deployment: Deployment, ask: Ask) -> list[Answer]:
    asked = replace(ask, stream=True)
    with GrpcStream(deployment.address.grpc, deployment.model, asked) as stream:
        return list(stream)


def text(answers: list[Answer]) -> str:
    return "".join(answer.text for answer in answers)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_the_loops_over_every_way_in(deployment, runtime, prompt):
    ask = Ask(text_input=prompt, max_tokens=40)
    wanted, _ = loop_output(runtime, ask)
    http = deployment.address.http
    assert generate(http, deployment.model, ask).text == wanted
    streamed = over_grpc(deployment, ask)
    assert text(streamed) == wanted
    assert len(streamed) > 3
    assert text(list(generate_stream(http, deployment.model, ask))) == wanted


@pytest.mark.parametrize("seed", range(6))
def test_sampled_text_is_the_loops_for_every_seed(deployment, runtime, seed):
    ask = Ask(text_input=PROMPTS[seed % 4], max_tokens=40, **{**SAMPLED, "seed": seed})
    wanted, _ = loop_output(runtime, ask)
    assert generate(deployment.address.http, deployment.model, ask).text == wanted
    assert text(over_grpc(deployment, ask)) == wanted


GUIDES = {
    "greedy": ({}, "regex", "([a-e]{2,4}[0-9]){3,5}"),
    "sampled": (SAMPLED, "regex", "([a-e]{2,4}[0-9]){3,5}"),
    "schema": (SAMPLED, "json_schema", '{"type": "array", "items": {"type": "boolean"}}'),
}


@pytest.mark.parametrize(("sampling", "type", "guide"), GUIDES.values(), ids=GUIDES.keys())
@pytest.mark.parametrize("num_draft_tokens", [None, 0])
def test_a_request_may_bring_its_grammar(
    deployment, runtime, sampling, type, guide, num_draft_tokens
):
    ask = Ask(
        text_input=PROMPTS[0],
        max_tokens=40,
        num_draft_tokens=num_draft_tokens,
        guided_decoding_guide_type=type,
        guided_decoding_guide=guide,
        **sampling,
    )
    wanted, output = loop_output(runtime, ask)
    if type == "regex":
        assert re.fullmatch(guide, wanted)
    assert bool(output.stats.accepted_tokens) == (num_draft_tokens is None)
    assert generate(deployment.address.http, deployment.model, ask).text == wanted
    assert text(over_grpc(deployment, ask)) == wanted


def test_a_grammar_that_does_not_compile_is_refused_with_the_reason(deployment):
    ask = Ask(text_input="a", max_tokens=4, guided_decoding_guide_type="regex")
    wrong = replace(ask, guided_decoding_guide="(a")
    with pytest.raises(RunError, match="unclosed group"):
        generate(deployment.address.http, deployment.model, wrong)
    wrong = replace(wrong, guided_decoding_guide_type="xml")
    with pytest.raises(RunError, match="expected one of json, json_schema, regex, ebnf_grammar"):
        generate(deployment.address.http, deployment.model, wrong)


def test_the_plain_ensemble_takes_grammars_too(bls, runtime):
    ask = Ask(
        text_input=PROMPTS[0],
        max_tokens=40,
        guided_decoding_guide_type="regex",
        guided_decoding_guide="[x-z]{5,9}[0-9]",
    )
    wanted, _ = loop_output(runtime, ask)
    assert generate(bls.address.http, "ensemble", ask).text.endswith(wanted)


def test_sampled_text_differs_between_seeds(deployment):
    texts = {
        generate(
            deployment.address.http,
            deployment.model,
            Ask(text_input="Hello", max_tokens=20, temperature=1.0, seed=seed),
        ).text
        for seed in range(4)
    }
    assert len(texts) == 4


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4])
def test_counts_are_those_of_the_whole_request(deployment, runtime, num_draft_tokens):
    ask = Ask(
        text_input=PROMPTS[0],
        max_tokens=50,
        end_id=-1,
        num_draft_tokens=num_draft_tokens,
        return_perf_metrics=True,
    )
    wanted, output = loop_output(runtime, ask)
    drafted, accepted = output.stats.draft_tokens, output.stats.accepted_tokens
    one = generate(deployment.address.http, deployment.model, ask)
    last = over_grpc(deployment, ask)[-1]
    for answer in (one, last):
        assert answer.total_draft_tokens == drafted
        assert answer.total_accepted_draft_tokens == accepted
        assert answer.acceptance_rate == pytest.approx(accepted / drafted if drafted else 0.0)
    assert one.text == wanted
    assert (drafted > 0) == (num_draft_tokens > 0)


def test_without_draft_logits_greedy_text_is_the_same(bls, runtime):
    ask = Ask(text_input=PROMPTS[1], max_tokens=30, use_draft_logits=False)
    assert generate(bls.address.http, bls.model, ask).text == loop_output(runtime, ask)[0]


def test_text_ends_before_a_stop_word(deployment, runtime):
    whole, _ = loop_output(runtime, Ask(text_input=PROMPTS[2], max_tokens=60))
    ask = Ask(text_input=PROMPTS[2], max_tokens=60, stop_words=(whole[9:11], "never said"))
    wanted = whole[: whole.find(whole[9:11])]
    assert loop_output(runtime, ask)[0] == wanted
    assert generate(deployment.address.http, deployment.model, ask).text == wanted
    assert text(over_grpc(deployment, ask)) == wanted
    plain = replace(ask, num_draft_tokens=0)
    assert text(over_grpc(deployment, plain)) == wanted


def test_the_prompt_comes_first_when_it_is_wanted(deployment, runtime):
    ask = Ask(text_input=PROMPTS[3], max_tokens=10, exclude_input_in_output=False)
    wanted = PROMPTS[3] + loop_output(runtime, ask)[0]
    assert generate(deployment.address.http, deployment.model, ask).text == wanted


def test_the_ensemble_decodes_plainly(bls, runtime):
    ask = Ask(text_input=PROMPTS[0], max_tokens=20, exclude_input_in_output=True)
    assert generate(bls.address.http, "ensemble", ask).text == loop_output(runtime, ask)[0]
    sampled = replace(ask, **SAMPLED)
    plain = replace(sampled, num_draft_tokens=0)
    assert generate(bls.address.http, "ensemble", sampled).text == loop_output(runtime, plain)[0]


def test_many_requests_at_once_each_get_their_own_text(deployment, runtime):
    asks = [
        Ask(
            text_input=f"{PROMPTS[i % 4]} {i}",
            max_tokens=20 + i,
            num_draft_tokens=(None, 0, 2)[i % 3],
            **(SAMPLED if i % 2 else {}),
        )
        for i in range(20)
    ]
    wanted = [loop_output(runtime, ask)[0] for ask in asks]
    with ThreadPoolExecutor(20) as threads:
        got = list(threads.map(lambda ask: text(over_grpc(deployment, ask)), asks))
    assert got == wanted
    wait_until_free(deployment)


def active(deployment: Deployment) -> float:
    return sum(
        value
        for name, value in metrics(deployment.address.metrics).items()
        if name.startswith("spectool_active_sequences")
    )


def wait_until_free(deployment: Deployment) -> None:
    deadline = time.monotonic() + 5
    while active(deployment) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert active(deployment) == 0


def generated(deployment: Deployment) -> float:
    return metrics(deployment.address.metrics).get(
        f'generation_tokens_total{{model="{deployment.model}"}}', 0.0
    )


LONG = Ask(text_input="a", max_tokens=250, end_id=-1, stream=True)


def stops_early(deployment: Deployment, ask_and_leave: Callable[[], None]) -> bool:
    """Whether less was generated than asked for; a fast server may be done before it is told."""
    for _ in range(5):
        wait_until_free(deployment)
        before = generated(deployment)
        ask_and_leave()
        wait_until_free(deployment)
        time.sleep(0.3)  # counters are handed over in pieces
        if generated(deployment) - before < LONG.max_tokens:
            return True
    return False


@pytest.mark.parametrize("num_draft_tokens", [1, 0])
def test_cancelling_a_grpc_stream_frees_its_slot(deployment, num_draft_tokens):
    ask = replace(LONG, num_draft_tokens=num_draft_tokens)

    def cancel():
        with GrpcStream(deployment.address.grpc, deployment.model, ask) as stream:
            next(iter(stream))
            assert active(deployment) > 0
            stream.cancel()

    assert stops_early(deployment, cancel)


def test_a_client_that_closes_its_connection_frees_its_slot(deployment):
    def hang_up():
        answers = generate_stream(deployment.address.http, deployment.model, LONG)
        next(answers)
        answers.close()

    assert stops_early(deployment, hang_up)


def test_metrics_count_what_was_speculated(deployment):
    labels = f'{{model="{deployment.model}"}}'
    names = [
        f"spec_decode_num_{what}_total{labels}"
        for what in ("drafts", "draft_tokens", "accepted_tokens")
    ]
    names += [
        f'spec_decode_num_accepted_tokens_per_pos_total{{model="{deployment.model}",position="0"}}',
        f"generation_tokens_total{labels}",
    ]
    ask = Ask(text_input=PROMPTS[0], max_tokens=50, end_id=-1, return_perf_metrics=True)
    generate(deployment.address.http, deployment.model, ask)
    before = metrics(deployment.address.metrics)
    answer = generate(deployment.address.http, deployment.model, ask)
    after = metrics(deployment.address.metrics)
    drafts, drafted, accepted, first, tokens = (after[n] - before[n] for n in names)
    assert (drafted, accepted) == (answer.total_draft_tokens, answer.total_accepted_draft_tokens)
    assert tokens == 50
    assert 0 < first <= drafts < drafted


def test_a_repeated_prompt_is_not_read_again(bls):
    name = 'prefix_cache_hit_tokens_total{model="tensorrt_llm"}'
    ask = Ask(text_input="x" * 100, max_tokens=4)
    generate(bls.address.http, bls.model, ask)
    before = metrics(bls.address.metrics)[name]
    generate(bls.address.http, bls.model, ask)
    assert metrics(bls.address.metrics)[name] - before >= 99


HOSTILE = {
    "negative max_tokens": ({"max_tokens": -3}, "max_tokens: -3"),
    "wrong type": ({"max_tokens": "many"}, "parse"),
    "no max_tokens": ({"max_tokens": None}, "max_tokens"),
    "one megabyte of prompt": ({"text_input": "a" * 1_000_000}, "max_seq_len"),
    "prompt longer than the engine": ({"text_input": "a" * 256}, "max_seq_len"),
    "empty prompt": ({"text_input": ""}, "prompt: no tokens"),
    "too many draft tokens": ({"num_draft_tokens": 500}, "at most 4"),
    "negative temperature": ({"temperature": -1.0}, "temperature: -1"),
    "impossible top_p": ({"top_p": 7.0}, "top_p: 7"),
    "a batch of two": ({"text_input": ["a", "b"], "max_tokens": [1, 1]}, "batch size is 1"),
    "a thousand stop words": ({"stop_words": ["a"] * 1000}, "stop_words: 1000"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_gets_an_error_and_the_next_one_an_answer(deployment, runtime, name):
    import json

    changes, message = HOSTILE[name]
    inputs = {"text_input": "Hello", "max_tokens": 8, **changes}
    body = json.dumps({k: v for k, v in inputs.items() if v is not None}).encode()
    url = f"{deployment.address.http}/v2/models/{deployment.model}/generate"
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(url, body), timeout=60)
    with error.value:
        assert message in json.loads(error.value.read())["error"]
    ask = Ask(text_input="Hello", max_tokens=8)
    wanted, _ = loop_output(runtime, ask)
    assert generate(deployment.address.http, deployment.model, ask).text == wanted


def test_bytes_that_are_not_utf8_get_an_error(deployment):
    import tritonclient.grpc as grpc

    text_input = grpc.InferInput("text_input", [1, 1], "BYTES")
    text_input.set_data_from_numpy(np.array([[b"ab\xff\xfe"]], object))
    max_tokens = grpc.InferInput("max_tokens", [1, 1], "INT32")
    max_tokens.set_data_from_numpy(np.array([[4]], np.int32))
    with GrpcStream(deployment.address.grpc, deployment.model, LONG) as stream:
        stream.cancel()
    errors = []
    client = grpc.InferenceServerClient(deployment.address.grpc)
    client.start_stream(lambda result, error: errors.append(error))
    client.async_stream_infer(deployment.model, [text_input, max_tokens])
    client.stop_stream()
    client.close()
    assert "text_input: not UTF-8" in str(errors[0])


def test_a_call_out_of_contract_is_refused_by_the_llm_models(bls):
    import tritonclient.grpc as grpc

    def tensor(name, values, dtype):
        made = grpc.InferInput(name, list(np.shape(values)), dtype)
        made.set_data_from_numpy(np.array(values, np.int32))
        return made

    answers = []
    client = grpc.InferenceServerClient(bls.address.grpc)
    client.start_stream(lambda result, error: answers.append((result, error)))
    client.async_stream_infer(
        "tensorrt_llm",
        [
            tensor("input_ids", [[1, 2, 99999]], "INT32"),
            tensor("input_lengths", [[5]], "INT32"),
            tensor("request_output_len", [[4]], "INT32"),
        ],
    )
    client.stop_stream()
    client.close()
    assert "input_lengths: 5, but input_ids has 3" in str(answers[0][1])


def test_an_error_is_a_run_error_for_our_own_client(deployment):
    with pytest.raises(RunError, match="max_tokens: -1"):
        generate(deployment.address.http, deployment.model, Ask(text_input="a", max_tokens=-1))

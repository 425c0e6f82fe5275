"""Generation through a strict stand-in for the bindings: text, counts and settings by mode."""

import json
import sys

import pytest

from tests.backends.tensorrt.fake_bindings import continuation
from tests.engine.trtllm.golden_flags import RELEASES
from tests.engine.trtllm.recipes import SPECULATION, made
from toolkit.backends.runtime import open_runtime
from toolkit.backends.tensorrt.runtime import memory_shares
from toolkit.engine.trtllm.directory import read_engine
from toolkit.errors import InputError, MissingDependencyError, RunError
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import Request

PROMPT = (5, 6, 7)
# By hand, of 12 tokens: prefill 1, then 1 + 3, 1 + 0, 1 + 1, 1 + 3: 12 = 1 + 4 + 1 + 2 + 4.
IN_ENGINE_ACCEPTED = [3, 0, 1, 3]


def generate(runtime, max_tokens=12, draft_len=None, **words):
    (output,) = runtime.loop(draft_len=draft_len).generate([Request(PROMPT, max_tokens, **words)])
    return output


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("drafter", SPECULATION)
def test_every_mode_of_every_release_ends_in_the_targets_text(drafter, version, opened):
    runtime, _ = opened(drafter, version)
    output = generate(runtime, max_tokens=40)
    assert output.tokens == continuation(list(PROMPT), 40)
    assert output.finish_reason == "length"
    assert output.stats.output_tokens == 40


@pytest.mark.parametrize("version", ["0.16.0", "1.2.1"])
@pytest.mark.parametrize(
    ("drafter", "path_len"), [("medusa", 4), ("eagle", 4), ("lookahead", 6), ("redrafter", 5)]
)
def test_engines_that_draft_inside_count_the_path_not_the_tree(drafter, path_len, version, opened):
    runtime, _ = opened(drafter, version)
    stats = generate(runtime).stats
    assert stats.prefill_tokens == 1
    assert stats.accepted_per_step == IN_ENGINE_ACCEPTED
    assert stats.drafted_per_step == [path_len] * 4
    assert stats.acceptance_length == 1 + 7 / 4


def test_answers_that_waited_together_are_steps_of_their_own(opened):
    runtime, bindings = opened("medusa")
    bindings.iterations_per_wait = 3
    loop = runtime.loop()
    loop.submit(Request(PROMPT, 12))
    sizes = []
    while loop.active:
        sizes += [len(chunk.tokens) for chunk in loop.step()]
    assert sizes == [1, 4, 1, 2, 4]


def test_plain_decoding_counts_no_drafts(opened):
    runtime, _ = opened("none")
    stats = generate(runtime).stats
    assert (stats.verify_steps, stats.draft_tokens, stats.accepted_tokens) == (11, 0, 0)


def test_a_draft_engine_is_verified_token_by_token(opened):
    """The student errs after a text whose length is a multiple of 4: of the drafts that begin at
    length 4, none stands; the next one begins at 5 and stands for 5, 6, 7: 3 of 10."""
    runtime, bindings = opened("draft_target")
    stats = generate(runtime, max_tokens=14).stats
    assert stats.drafted_per_step[:2] == [10, 10]
    assert stats.accepted_per_step[:2] == [0, 3]
    target = bindings.executors[0]
    assert [r.external_draft_tokens_config is None for r in target.requests[:2]] == [True, False]
    assert target.requests[1].max_tokens == 11  # the drafts and one more


def test_drafts_leave_room_for_the_last_token(opened):
    runtime, bindings = opened("draft_target")
    generate(runtime, max_tokens=3)
    # After prefill 2 tokens are left: one draft and the token behind it.
    assert len(bindings.executors[0].requests[1].external_draft_tokens_config.tokens) == 1


def test_plain_decoding_on_a_target_engine_sends_no_drafts(opened):
    runtime, bindings = opened("draft_target")
    output = generate(runtime, draft_len=0)
    assert output.tokens == continuation(list(PROMPT), 12)
    assert bindings.executors[1].requests == []
    assert output.stats.draft_tokens == 0


def test_a_request_may_ask_for_its_own_draft_length(opened):
    runtime, bindings = opened("draft_target")
    loop = runtime.loop()
    loop.generate([Request(PROMPT, 8, draft_len=2)])
    sent = [r.external_draft_tokens_config for r in bindings.executors[0].requests]
    assert max(len(draft.tokens) for draft in sent if draft) == 2
    with pytest.raises(InputError, match="draft_len 11: the target engine takes at most 10"):
        loop.submit(Request(PROMPT, 8, draft_len=11))


def test_prompt_lookup_needs_no_second_engine(opened):
    runtime, bindings = opened("ngram")
    (output,) = runtime.loop().generate([Request((1, 2, 3, 1, 2), 6)])
    assert output.tokens == continuation([1, 2, 3, 1, 2], 6)
    assert len(bindings.executors) == 1


@pytest.mark.parametrize("version", RELEASES)
def test_accepting_by_logits_hands_them_on(version, built, install):
    recipe = made("draft_target", version, speculation={"use_draft_logits": True})
    bindings = install(version)
    runtime = open_runtime(built("draft_target", version, recipe))
    assert generate(runtime).tokens == continuation(list(PROMPT), 12)
    sent = bindings.executors[0].requests[1].external_draft_tokens_config
    assert sent.logits.shape == (len(sent.tokens), 250)


def test_requests_are_batched_in_flight(opened):
    runtime, _ = opened("draft_target")
    prompts = [(1, 2), (3,), (9, 9, 9, 9)]
    outputs = runtime.loop().generate([Request(p, 9) for p in prompts])
    assert [o.tokens for o in outputs] == [continuation(list(p), 9) for p in prompts]


@pytest.mark.parametrize("drafter", ["none", "medusa", "draft_target"])
def test_a_stop_token_ends_the_text_and_is_part_of_it(drafter, opened):
    runtime, bindings = opened(drafter)
    text = continuation(list(PROMPT), 12)
    output = generate(runtime, stop_tokens=frozenset({text[6], 249}))
    assert output.tokens == text[:7]
    assert output.finish_reason == "stop"
    sent = bindings.executors[0].requests[0]
    assert {sent.end_id, *(word[0] for word in sent.stop_words)} == {text[6], 249}


@pytest.mark.parametrize("drafter", ["medusa", "draft_target"])
def test_a_stop_string_ends_the_text_and_the_engines_request(drafter, opened):
    runtime, bindings = opened(drafter)
    text = continuation(list(PROMPT), 40)
    word = runtime.tokenizer.decode(text[:12])[-2:]
    output = generate(runtime, max_tokens=40, stop_strings=(word,))
    assert output.finish_reason == "stop"
    assert word in runtime.tokenizer.decode(output.tokens)
    assert output.tokens == text[: len(output.tokens)]
    assert len(output.tokens) < 40
    assert len(bindings.executors[0].cancelled) == (drafter == "medusa")


@pytest.mark.parametrize("drafter", ["eagle", "draft_target"])
def test_a_cancelled_request_leaves_the_others_alone(drafter, opened):
    runtime, _ = opened(drafter)
    loop = runtime.loop()
    first, other = loop.submit(Request((1, 2), 20)), loop.submit(Request((3, 4), 20))
    tokens = [t for chunk in loop.step() if chunk.request == other for t in chunk.tokens]
    assert loop.cancel(first).finish_reason == "cancelled"
    assert loop.cancel(first) is None
    while loop.active:
        tokens += [t for chunk in loop.step() for t in chunk.tokens]
    assert tokens == continuation([3, 4], 20)


def test_text_ends_at_the_recipes_length_not_at_the_engines(opened):
    """Built for 200, the engine says 263; the 63 are for drafts."""
    runtime, bindings = opened("medusa")
    assert bindings.executors[0].build["max_seq_len"] == 263
    output = generate(runtime, max_tokens=500)
    assert len(PROMPT) + len(output.tokens) == 200
    assert output.finish_reason == "length"
    with pytest.raises(InputError, match="at most 200"):
        runtime.loop().submit(Request((1,) * 200, 1))


def test_sampling_never_sees_the_same_chance_twice(opened):
    runtime, bindings = opened("draft_target")
    generate(runtime, sampling=SamplingParams(temperature=0.7, top_p=0.9, top_k=40, seed=3))
    target = [request.sampling_config for request in bindings.executors[0].requests]
    assert len({config.seed for config in target}) == len(target)
    assert (target[0].temperature, target[0].top_p, target[0].top_k) == (0.7, 0.9, 40)


def test_sampling_without_limits_is_not_greedy(opened):
    runtime, bindings = opened("none")
    generate(runtime, sampling=SamplingParams(temperature=1.0, seed=1))
    generate(runtime)
    sampled, greedy = (request.sampling_config for request in bindings.executors[0].requests)
    assert (sampled.top_p, sampled.top_k) == (1.0, None)
    assert (greedy.top_k, greedy.temperature) == (1, None)


@pytest.mark.parametrize(
    ("drafter", "reuse", "mode"),
    [
        ("medusa", False, "LEADER"),
        ("draft_target", True, "ORCHESTRATOR"),
        ("ngram", True, "LEADER"),
    ],
)
def test_engines_are_loaded_as_their_mode_needs(drafter, reuse, mode, opened):
    _, bindings = opened(drafter)
    for executor in bindings.executors:
        assert executor.config.kv_cache_config.enable_block_reuse is reuse
        assert executor.config.parallel_config.communication_mode.name == mode
        assert executor.config.max_beam_width == 1


def test_eagle_2_grows_its_tree(built, install):
    recipe = made(
        "eagle", speculation={"eagle_use_dynamic_tree": True, "eagle_dynamic_tree_max_top_k": 10}
    )
    bindings = install()
    runtime = open_runtime(built("eagle", recipe=recipe))
    config = bindings.executors[0].config.decoding_config.eagle_config
    assert (config.use_dynamic_tree, config.dynamic_tree_max_topK) == (True, 10)
    assert config.eagle_choices is None
    assert generate(runtime).tokens == continuation(list(PROMPT), 12)


def test_memory_is_shared_in_the_order_of_loading(built, tmp_path):
    """Per token the target keeps 3 times what the draft keeps: of what is free when it loads it
    takes 0.9 x 3/4; the draft comes last and takes 0.9 of the rest."""
    models = built("draft_target")
    path = models.engines["target"] / "config.json"
    config = json.loads(path.read_text())
    config["pretrained_config"]["num_hidden_layers"] *= 3
    path.write_text(json.dumps(config))
    engines = {role: read_engine(path) for role, path in models.engines.items()}
    assert memory_shares(engines, 0.9) == pytest.approx({"target": 0.675, "draft": 0.9})


def test_an_engine_of_another_release_is_refused(built, install):
    install("1.1.0")
    with pytest.raises(InputError, match=r"built by TensorRT-LLM 1\.2\.1, this is 1\.1\.0"):
        open_runtime(built())


def test_without_tensorrt_llm_the_exit_code_is_three(built, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'spectool\[tensorrt\]'"):
        open_runtime(built())


def test_engines_that_cannot_reuse_blocks_are_refused_before_loading(built, install):
    bindings = install()
    models = built(draft={"use_paged_context_fmha": False})
    with pytest.raises(InputError, match="draft: built without paged context FMHA"):
        open_runtime(models)
    assert bindings.executors == []


def test_an_engine_built_for_fewer_drafts_is_refused(built, install):
    install()
    models = built()
    larger = made("draft_target", speculation={"max_draft_len": 12})
    with pytest.raises(InputError, match="built for 10 draft tokens, the recipe wants 12"):
        open_runtime(type(models)(larger, models.engines, models.tokenizers))


def test_when_one_engine_does_not_load_the_others_give_their_memory_back(built, install):
    bindings = install()
    bindings.fail_loading = "draft"
    with pytest.raises(RunError, match="built for another GPU architecture"):
        open_runtime(built())
    assert [executor.closed for executor in bindings.executors] == [True]


@pytest.mark.parametrize("drafter", ["medusa", "draft_target"])
def test_a_request_that_the_engine_refuses_is_explained(drafter, opened):
    runtime, bindings = opened(drafter)
    bindings.fail_request = "draft tokens 56 exceed maximum 0"
    loop = runtime.loop()
    with pytest.raises(RunError, match="built without room for that many draft tokens"):
        loop.generate([Request(PROMPT, 8)])
    assert loop.active == 0
    bindings.fail_request = None
    assert loop.generate([Request(PROMPT, 8)])[0].tokens == continuation(list(PROMPT), 8)


@pytest.mark.parametrize("drafter", ["medusa", "draft_target"])
def test_an_engine_that_says_nothing_does_not_hang_us(drafter, opened):
    runtime, bindings = opened(drafter)
    bindings.silent = True
    with pytest.raises(RunError, match="no answer in 600 s"):
        generate(runtime)
    assert bindings.executors[0].cancelled != []


def test_an_engine_that_drafts_inside_cannot_decode_plainly(opened):
    runtime, _ = opened("eagle")
    with pytest.raises(InputError, match="build with drafter: none"):
        runtime.loop(draft_len=0)
    with pytest.raises(InputError, match="always drafts 4 token"):
        runtime.loop().submit(Request(PROMPT, 8, draft_len=2))


def test_what_needs_logits_is_told_that_engines_have_none(opened):
    runtime, _ = opened("none")
    with pytest.raises(InputError, match="engines answer with tokens"):
        _ = runtime.target

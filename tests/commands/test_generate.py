import json
import re
from io import StringIO

import pytest
import yaml

from tests.engine_fixtures import tiny_recipe, write_tiny_model
from toolkit.cli import main
from toolkit.recipe.load import dump_recipe

PROMPT = "abcabcabc"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe file of a tiny model, and the options that give it a store of its own."""
    directory = tmp_path_factory.mktemp("generate")
    write_tiny_model(directory / "target")
    path = directory / "recipe.yaml"
    path.write_text(dump_recipe(tiny_recipe(directory, drafter="ngram", max_draft_len=4)))
    assert yaml.safe_load(path.read_text())
    return [str(path), "--store", str(directory / "store")]


@pytest.fixture
def run(recipe, capsys):
    """Run `spectool generate RECIPE ...`: exit code, stdout, stderr."""

    def call(*arguments):
        code = 0
        try:
            main(["generate", *recipe, *arguments])
        except SystemExit as done:
            code = done.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def document(run, *arguments):
    code, out, _ = run("--prompt", PROMPT, "--max-tokens", "30", "--json", *arguments)
    assert code == 0
    return json.loads(out)


def test_what_is_missing_is_built_first_and_the_text_goes_to_stdout(run):
    code, out, err = run("--prompt", PROMPT, "--max-tokens", "20")
    assert code == 0
    assert out.strip()
    assert "acceptance_length" in err
    assert "TPOT" in err
    _, again, err = run("--prompt", PROMPT, "--max-tokens", "20")
    assert again == out
    assert "built" not in err


def test_json_is_one_document_with_text_tokens_and_counts(run):
    found = document(run)
    assert found["drafter"] == "ngram"
    assert found["finish_reason"] in ("length", "stop")
    stats = found["stats"]
    assert stats["output_tokens"] == len(found["tokens"]) <= 30
    assert stats["draft_tokens"] == sum(stats["drafted_per_step"])
    _, out, _ = run("--prompt", PROMPT, "--max-tokens", "30")
    assert out == found["text"] + "\n"


def test_acceptance_is_told_in_another_tools_words_too(run):
    found = document(run, "--as", "trtllm-bench")
    stats, spoken = found["stats"], found["as"]
    steps = stats["verify_steps"] + 1  # prefill counts as a step, and every step as four drafts
    assert spoken["acceptance_rate"] == stats["accepted_tokens"] / (4 * steps)
    assert spoken["acceptance_length"] == stats["output_tokens"] / steps
    assert "as" not in document(run)
    _, _, err = run("--prompt", PROMPT, "--max-tokens", "20", "--as", "vllm")
    assert "dialect vllm, acceptance_rate" in err
    assert "itl_ms" in err


def test_speculation_changes_the_counts_and_not_the_text(run):
    fast, plain, k2 = (document(run, *more) for more in ([], ["--no-speculation"], ["--k", "2"]))
    assert fast["text"] == plain["text"] == k2["text"]
    assert plain["stats"]["draft_tokens"] == 0
    assert plain["stats"]["acceptance_rate"] is None
    assert max(fast["stats"]["drafted_per_step"]) == 4
    assert max(k2["stats"]["drafted_per_step"]) == 2


def test_raw_leaves_the_chat_template_out(run):
    raw, chat = document(run, "--raw"), document(run)
    assert raw["prompt_tokens"] == len(PROMPT)
    assert chat["prompt_tokens"] > len(PROMPT)


def test_a_seed_makes_sampled_text_repeatable(run):
    sampled = [document(run, "--temperature", "1", "--seed", seed) for seed in ("5", "5", "6")]
    assert sampled[0]["tokens"] == sampled[1]["tokens"] != sampled[2]["tokens"]
    unseeded = document(run, "--temperature", "1")
    again = document(run, "--temperature", "1", "--seed", str(unseeded["sampling"]["seed"]))
    assert again["tokens"] == unseeded["tokens"]


def test_text_ends_before_a_stop_string(run):
    whole = document(run)["text"]
    stop = whole[8:11]
    found = document(run, "--stop", stop)
    assert found["text"] == whole[: whole.index(stop)]
    assert found["finish_reason"] == "stop"


def test_the_prompt_may_come_from_a_file_or_stdin(run, tmp_path, monkeypatch):
    expected = document(run)["text"]
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    options = ("--max-tokens", "30", "--json")
    assert json.loads(run("--prompt-file", str(file), *options)[1])["text"] == expected
    monkeypatch.setattr("sys.stdin", StringIO(PROMPT))
    assert json.loads(run("--prompt-file", "-", *options)[1])["text"] == expected


def test_an_answer_obeys_the_grammar_that_is_given(run, tmp_path):
    regex = ("--regex", "(abc|[0-9]{2}){2,5}")
    fast, plain = document(run, *regex), document(run, *regex, "--no-speculation")
    assert fast["text"] == plain["text"]
    assert re.fullmatch(regex[1], fast["text"])
    assert fast["finish_reason"] == "stop"
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.ebnf"
    schema.write_text('{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}')
    found = json.loads(document(run, "--json-schema", str(schema))["text"])
    assert isinstance(found, list)
    grammar.write_text('root ::= "[" root "]" | "x"')
    code, out, _ = run("--prompt", "[", "--ebnf", str(grammar), "--max-tokens", "5")
    assert code == 0
    assert set(out.strip()) <= set("[x]")
    assert document(run, "--any-json")["text"][0] in "{["


def test_a_recipes_grammar_counts_unless_another_is_given(run, tmp_path):
    (tmp_path / "guide").write_text("[xyz]{4}")
    options = ("--set", "guided_decoding.guide_type=regex")
    recipe = (*options, "--set", f"guided_decoding.guide_file={tmp_path / 'guide'}")
    assert re.fullmatch("[xyz]{4}", document(run, *recipe)["text"])
    assert re.fullmatch("[uvw]{3}", document(run, *recipe, "--regex", "[uvw]{3}")["text"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either --prompt TEXT or --prompt-file"),
        (["--prompt", "a", "--prompt-file", "b"], "either --prompt TEXT or --prompt-file"),
        (["--prompt", "  "], "the prompt is empty"),
        (["--prompt-file", "/no/such/file"], "/no/such/file: not readable"),
        (["--prompt", "a", "--k", "3", "--no-speculation"], "exclude each other"),
        (["--prompt", "a", "--k", "0"], "Invalid value for '--k'"),
        (["--prompt", "a", "--temperature", "-1"], "Invalid value for '--temperature'"),
        (["--prompt", "a", "--temperature", "nan"], "Invalid value"),
        (["--prompt", "a", "--top-p", "0"], "Invalid value"),
        (["--prompt", "a", "--stop", ""], "--stop: an empty text"),
        (["--prompt", "a", "--regex", "(a"], "regex guide: at 1(8): invalid regex"),
        (["--prompt", "a", "--regex", ""], "regex guide: it is empty"),
        (["--prompt", "a", "--json-schema", "/no/such"], "/no/such: not readable as UTF-8 text"),
        (["--prompt", "a", "--regex", "a", "--any-json"], "exclude each other"),
        (["--prompt", "a" * 300], "engine.max_input_len is 200"),
        (["--prompt", "a", "--k", "3", "--set", "speculation={drafter: none}"], "drafter none"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(run, arguments, message):
    code, out, err = run(*arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_a_drafter_of_none_decodes_plainly(run):
    code, out, err = run("--prompt", PROMPT, "--set", "speculation={drafter: none}")
    assert code == 0
    assert out.strip()
    assert "acceptance" not in err

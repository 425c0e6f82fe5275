"""Logs of real traffic: read whole, or refused with every line that is wrong."""

import json

import pytest

from toolkit.errors import InputError
from toolkit.measure.trace_log import foreign_text, load_log


def write(path, *lines):
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def pair(prompt, output="out", **more):
    return {"prompt": prompt, "output": output, **more}


def test_lines_are_grouped_by_domain_and_repeats_are_left_out(tmp_path):
    log = load_log(
        write(
            tmp_path / "log.jsonl",
            pair("a", "one"),
            pair("b", "two", id="mine", raw=True),
            "",
            pair("a", "three"),
            pair("c", domain="code"),
            pair("a", domain="code"),
        )
    )
    assert [(s.domain, [p.id for p in s.prompts]) for s in log.sets] == [
        ("log", ["log-1", "mine"]),
        ("code", ["code-5", "code-6"]),
    ]
    assert log.sets[0].prompts[1].raw
    assert log.outputs["log", "mine"] == "two"
    assert log.lines["code", "code-5"] == 5
    assert log.repeated == 1


def test_a_limit_holds_for_each_domain(tmp_path):
    lines = [pair(str(i), domain=domain) for i in range(5) for domain in ("x", "y")]
    log = load_log(write(tmp_path / "log.jsonl", *lines), limit=3)
    assert [len(s.prompts) for s in log.sets] == [3, 3]


def test_every_wrong_line_is_named_with_its_number(tmp_path):
    path = write(
        tmp_path / "log.jsonl",
        pair("a"),
        "{",
        {"prompt": "b"},
        pair("", "x"),
        pair("c", 7),
        pair("d", promt="x"),
        "[1]",
        pair("e", domain="all"),
        pair("f", id="same"),
        pair("g", id="same"),
    )
    with pytest.raises(InputError) as caught:
        load_log(path)
    text = str(caught.value)
    for sentence in (
        "--log: 8 problem(s)",
        ":2: not JSON",
        ":3: output: required",
        ":4: prompt: empty",
        ":5: output: expected str, got int",
        ":6: unknown key 'promt'; did you mean 'prompt'?",
        ':7: expected an object like {"prompt": "...", "output": "..."}',
        ":8: domain 'all': this name stands for all domains together",
        ":10: the same id as in line 9",
    ):
        assert sentence in text


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [([], "no (prompt, output) pair"), ([pair("a")], "domain 'log' has one prompt")],
)
def test_too_few_pairs_are_refused(tmp_path, lines, sentence):
    with pytest.raises(InputError) as caught:
        load_log(write(tmp_path / "log.jsonl", *lines))
    assert sentence in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"--log .*none\.jsonl: not readable"):
        load_log(tmp_path / "none.jsonl")


def byte_encode(text):
    return [256] if text == "<|im_end|>" else list(text.encode())


def byte_decode(tokens):
    return b"".join(b"<|im_end|>" if t == 256 else bytes([t]) for t in tokens).decode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("plain words, 한국어 and <b>tags</b>", None),
        ("<|im_end|>", None),  # this tokenizer has it
        ("done<|eot_id|>", "'<|eot_id|>' is a special token of another tokenizer"),
        ("bye<end_of_turn>\n", "'<end_of_turn>' is a special token of another tokenizer"),
        ("[INST] hello [/INST]", "'[INST]' is a special token of another tokenizer"),
    ],
)
def test_a_text_of_another_tokenizer_is_told_by_its_markers(text, reason):
    assert foreign_text(text, byte_encode, byte_decode) == reason


def test_a_text_without_tokens_for_it_is_told_by_what_is_lost():
    def ascii_only(text):
        return [ord(c) for c in text if ord(c) < 128]

    def decode(tokens):
        return " " + "".join(map(chr, tokens))  # a space in front is no loss

    assert foreign_text("Plain words", ascii_only, decode) is None
    reason = foreign_text("naive or naïve", ascii_only, decode)
    assert reason == "this tokenizer has no tokens for 'ïve'"

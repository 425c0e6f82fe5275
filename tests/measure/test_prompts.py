"""Bundled prompt sets, and what is said about a user's own."""

import json

import pytest

from toolkit.errors import InputError
from toolkit.measure.prompts import BUNDLED, load_prompt_sets


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def line(text, **more):
    return json.dumps({"prompt": text, **more}, ensure_ascii=False)


def bundled():
    return {found.domain: found.prompts for found in load_prompt_sets({n: n for n in BUNDLED})}


def test_bundled_sets_have_24_different_prompts():
    for prompts in bundled().values():
        assert len(prompts) >= 24
        assert len({prompt.text for prompt in prompts}) == len(prompts)
        assert len({prompt.id for prompt in prompts}) == len(prompts)


def test_code_is_continued_and_the_rest_is_answered():
    assert {prompt.raw for prompt in bundled()["code"]} == {True}
    assert {p.raw for name in ("chat_en", "chat_ko", "edit") for p in bundled()[name]} == {False}


def test_edit_passages_are_long_enough_to_copy_from():
    for prompt in bundled()["edit"]:
        instruction, _, passage = prompt.text.partition("\n\n")
        assert instruction
        assert 80 <= len(passage.split()) <= 200


def test_korean_prompts_are_korean():
    for prompt in bundled()["chat_ko"]:
        assert sum("가" <= letter <= "힣" for letter in prompt.text) > len(prompt.text) / 2


def test_a_file_of_ones_own(tmp_path):
    path = write(
        tmp_path / "my.jsonl", line("one", id="first"), "", line("two\u2028lines", raw=True)
    )
    (found,) = load_prompt_sets({"mine": path})
    assert [(p.id, p.text, p.raw) for p in found.prompts] == [
        ("first", "one", False),
        ("mine-03", "two\u2028lines", True),
    ]


def test_a_path_is_relative_to_the_base(tmp_path):
    write(tmp_path / "my.jsonl", line("one"), line("two"))
    (found,) = load_prompt_sets({"mine": "my.jsonl"}, base=tmp_path)
    assert len(found.prompts) == 2


def test_the_limit_takes_the_first_prompts(tmp_path):
    path = write(tmp_path / "my.jsonl", *(line(f"prompt {i}") for i in range(5)))
    (found,) = load_prompt_sets({"mine": path}, limit=2)
    assert [prompt.text for prompt in found.prompts] == ["prompt 0", "prompt 1"]


def test_all_problems_of_all_files_come_at_once(tmp_path):
    bad = write(
        tmp_path / "bad.jsonl",
        line("fine"),
        '{"prompt": "torn',
        '["a list"]',
        json.dumps({"promt": "x"}),
        json.dumps({"prompt": 5}),
        line("  "),
        line("fine"),
        line("other", raw="yes"),
        line("same id", id="a"),
        line("same id again", id="a"),
    )
    with pytest.raises(InputError) as caught:
        load_prompt_sets({"bad": bad, "all": "code", "typo": "chat_kr"})
    text = str(caught.value)
    for part in (
        "domain 'all': this name stands for all domains together",
        "'chat_kr' is neither a file nor a bundled set; did you mean 'chat_ko'?",
        f"{bad}:2: not JSON",
        f"{bad}:3: expected an object",
        f"{bad}:4: unknown key 'promt'; did you mean 'prompt'?",
        f"{bad}:4: prompt: required",
        f"{bad}:5: prompt: expected str, got int",
        f"{bad}:6: prompt: empty",
        f"{bad}:7: the same prompt as in line 1",
        f"{bad}:8: raw: expected bool, got str",
        f"{bad}:10: the same id as in line 9",
    ):
        assert part in text


@pytest.mark.parametrize(("lines", "found"), [([""], "no prompt"), ([line("one")], "only one")])
def test_an_empty_set_and_a_set_of_one_are_refused(tmp_path, lines, found):
    path = write(tmp_path / "few.jsonl", *lines)
    with pytest.raises(InputError, match=found):
        load_prompt_sets({"few": path})


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "binary.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not readable as UTF-8"):
        load_prompt_sets({"x": str(path)})

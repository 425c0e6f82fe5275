"""YAML is data with places; whatever could hurt is refused early and in one line."""

import time

import pytest

from toolkit.errors import InputError
from toolkit.recipe.yaml_lines import MAX_BYTES, dotted, parse_document, parse_value, read_text


def problems(text):
    return [str(problem) for problem in parse_document(text, "r.yaml").problems]


def test_every_key_and_item_knows_its_line():
    where = parse_document("a: 1\nb:\n  c: [x,\n      y]\n", "r.yaml").where
    assert {path: place.line for path, place in where.items()} == {
        (): 1, ("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", 0): 3, ("b", "c", 1): 4,
    }  # fmt: skip


def test_duplicate_keys_are_all_named_and_the_first_value_stands():
    text = "a: 1\nb: {c: 1, c: 2}\na: 3\n"
    assert problems(text) == [
        "b.c: written twice, first on line 2; keep one (line 2)",
        "a: written twice, first on line 1; keep one (line 3)",
    ]
    assert parse_document(text, "r.yaml").data == {"a": 1, "b": {"c": 1}}


def test_keys_stay_the_text_that_was_typed():
    # YAML 1.1 would read these as true, 1 and null.
    assert parse_document("on: a\n1: b\nnull: c\n", "r.yaml").data == {
        "on": "a", "1": "b", "null": "c",
    }  # fmt: skip


def test_dates_are_text_and_ranges_are_text():
    assert parse_document("a: 2026-13-99\nb: 2..8\n", "r.yaml").data == {
        "a": "2026-13-99", "b": "2..8",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("- a\n- b\n", "holds a list"),
        ("just words\n", "holds a single value"),
        ("a: 1\n---\nb: 2\n", "found another document (line 2)"),
        ("a: &x [1]\nb: *x\n", "aliases (*name) are not accepted; write the value out (line 2)"),
        ("a: [1, 2\n", "not usable YAML"),
        ("a:\n\tb: 1\n", "line 2"),
        ("a: b: c\n", "line 1"),
        ("a: \x00\n", "not usable YAML"),
        ("[" * 200_000, "nested deeper than 32 levels"),
        ("\n".join(f"k{i}: 1" for i in range(100_000)), "more than 20000 values"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_recipe_is_refused_in_one_line(text, says):
    with pytest.raises(InputError) as raised:
        parse_document(text, "r.yaml")
    assert says in str(raised.value)
    assert str(raised.value).startswith("r.yaml: ")
    assert "\n" not in str(raised.value)


def test_a_bomb_of_aliases_is_refused_before_it_grows():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    started = time.monotonic()
    with pytest.raises(InputError, match="aliases"):
        parse_document("\n".join(lines), "bomb.yaml")
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: !!python/object/apply:os.system [true]\n", "YAML tag"),
        ("a: !secret x\n", "YAML tag '!secret' is not accepted (line 1)"),
        ("a: !!binary aGk=\n", "YAML tag '!!binary'"),
        ("a: !!set {x}\n", "YAML tag '!!set'"),
        ("a: !!int x\n", "'x' is not a usable int"),
        (f"a: {'9' * 5000}\n", "is not a usable int"),
        ("? [b]\n: 1\n", "a key must be one word"),
    ],
)
def test_values_beyond_plain_data_are_problems(text, says):
    assert says in problems(text)[0]


def test_a_file_over_one_mebibyte_is_not_even_parsed(tmp_path):
    path = tmp_path / "big.yaml"
    path.write_bytes(b"a: " + b"x" * 10 * MAX_BYTES)
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_text(path)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_bytes(b"a: \xff\xfe")
    with pytest.raises(InputError, match=r"not UTF-8 text \(byte 3\)"):
        read_text(path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert parse_document(read_text(path), "r.yaml").data == {"a": 1}


def test_a_single_value_is_read_as_yaml():
    assert parse_value("[0, 1]") == [0, 1]
    assert parse_value("") is None
    assert parse_value("pip:x==1") == "pip:x==1"
    with pytest.raises(ValueError, match="not usable YAML"):
        parse_value("[1")


def test_paths_read_as_they_are_written():
    assert dotted(("tune", "k", 1)) == "tune.k[1]"
    assert dotted(()) == "recipe"

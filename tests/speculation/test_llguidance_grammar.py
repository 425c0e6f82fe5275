import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import InputError, MissingDependencyError
from toolkit.speculation.grammar import GrammarError, Guide, masked, masked_rows
from toolkit.speculation.llguidance_grammar import LlGuidance

from .tiny_tokens import END, OTHER_END, guidance

GUIDANCE = guidance()
JSON_TOKENS = ["{", "}", "[", "]", '"', ":", ",", "a", "1", "2", "-", '{"', '":', "Ġ"]


def allowed(matcher, draft=()):
    return np.flatnonzero(matcher.mask(draft)).tolist()


def open_regex(text):
    return GUIDANCE.compile(Guide("regex", text)).matcher()


# Masks, worked out by hand: tokens are a, b, ab and two ends.


def test_tokens_that_the_expression_can_go_on_with_are_allowed():
    matcher = open_regex("a(ba|a)b")
    assert allowed(matcher) == [0, 2]  # a, ab
    assert allowed(matcher, [0]) == [0, 1, 2]  # a a, a b, a ab
    assert allowed(matcher, [2]) == [2]  # ab ab, for nothing else is left
    assert allowed(matcher, [0, 0]) == [1]
    assert allowed(matcher, [0, 1, 0]) == [1]


def test_a_forced_text_is_spelled_as_the_tokenizer_would():
    assert allowed(open_regex("abb")) == [2]
    assert allowed(open_regex("abb"), [0]) == [1]  # were it spelled otherwise


def test_end_tokens_are_allowed_exactly_where_the_text_is_complete():
    matcher = open_regex("(ab)*")
    assert allowed(matcher) == [0, 2, END, OTHER_END]
    assert allowed(matcher, [0]) == [1]
    assert allowed(matcher, [0, 1]) == [0, 2, END, OTHER_END]


def test_a_complete_text_forces_its_end():
    matcher = open_regex("ab")
    matcher.advance([2])
    assert allowed(matcher) == [END, OTHER_END]
    matcher.advance([END])
    assert allowed(matcher) == [END, OTHER_END]
    with pytest.raises(GrammarError, match="token 0 is not allowed"):
        matcher.advance([0])


def test_special_tokens_are_no_text():
    # . would match the text "<special>", were it text
    tokens = [*(chr(c) for c in range(33, 127))]
    matcher = guidance(tokens).compile(Guide("regex", ".*")).matcher()
    assert allowed(matcher) == list(range(len(tokens) + 2))


def test_nobody_draws_behind_a_broken_draft():
    assert open_regex("ab").mask([1]).all()
    assert open_regex("ab").mask([2, END, 0]).all()


def test_the_rows_of_a_verify_step_are_the_masks_along_the_draft():
    matcher = open_regex("(ab|bb)(a|b)")
    rows = [np.flatnonzero(row).tolist() for row in matcher.rows([0, 1, 0])]
    assert rows == [[0, 1, 2], [1], [0, 1], [END, OTHER_END]]
    assert matcher.prefix([0, 1, 0]) == 3
    assert matcher.prefix([0, 1, 0, END]) == 4
    assert matcher.prefix([0, 1, 0, 0]) == 3
    assert matcher.prefix([0, 1, 0, END, END]) == 5  # the loop stops at the first of them
    assert matcher.prefix([0, 0]) == 1
    assert matcher.prefix([END]) == 0
    assert matcher.prefix([99]) == 0


def test_rows_of_padding_and_of_a_smaller_vocabulary_are_masked_too():
    mask = np.array([True, False, True])
    assert masked(np.array([1.0, 2, 3, 4]), mask).tolist() == [1.0, -np.inf, 3.0, -np.inf]
    assert masked(np.array([1.0, 2]), mask).tolist() == [1.0, -np.inf]
    rows = np.array([[1.0, 2, 3], [4, 5, 6]], np.float32)
    assert masked_rows(rows, [mask, ~mask]).tolist() == [[1, -np.inf, 3], [-np.inf, 5, -np.inf]]
    assert rows.tolist() == [[1, 2, 3], [4, 5, 6]]


# A matcher at any point of any history is a fresh one that read the same text.

EXPRESSIONS = ["(a|b)*abb", "(ab)*", "a?b{2,5}(ab|ba)*", "((a|b){3})*b", "ab"]
JSON_GUIDES = [
    '{"type": "array", "items": {"type": "integer"}, "maxItems": 3}',
    '{"properties": {"a": {"enum": [1, 12, "a"]}}, "additionalProperties": false}',
    "{}",
]
JSON_GUIDANCE = guidance(JSON_TOKENS)
GRAMMARS = {
    **{text: GUIDANCE.compile(Guide("regex", text)) for text in EXPRESSIONS},
    **{text: JSON_GUIDANCE.compile(Guide("json_schema", text)) for text in JSON_GUIDES},
}


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS.keys())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_drafts_and_rollbacks_leave_no_trace(grammar, data):
    matcher, text = grammar.matcher(), []
    tokens = st.integers(0, len(matcher.mask()) - 1)
    for _ in range(data.draw(st.integers(1, 6))):
        draft = data.draw(st.lists(tokens, max_size=4))
        rows, fresh_rows = matcher.rows(draft), [step(grammar, text, draft[:i]) for i in range(5)]
        assert all((a == b).all() for a, b in zip(rows, fresh_rows, strict=False))
        stands = [bool(row[token]) for row, token in zip(rows, draft, strict=False)]
        assert matcher.prefix(draft) == [*stands, False].index(False)
        walk = []
        for _ in range(data.draw(st.integers(0, 4))):
            if not ends(text + walk):
                walk.append(data.draw(st.sampled_from(allowed(matcher, walk))))
        matcher.advance(walk)
        text += walk
        back = data.draw(st.integers(0, len(text)))
        matcher.rollback(back)
        text = text[: len(text) - back]


def ends(text):
    return bool(text) and text[-1] in (END, OTHER_END, len(JSON_TOKENS), len(JSON_TOKENS) + 1)


def step(grammar, text, draft):
    """The mask behind the draft by a matcher that never saw anything else; True all over where
    the draft breaks the grammar."""
    matcher = grammar.matcher()
    matcher.advance(text)
    try:
        matcher.advance(draft)
    except GrammarError:
        return np.ones_like(matcher.mask())
    return matcher.mask()


def test_matchers_of_one_grammar_do_not_see_each_other():
    grammar = GUIDANCE.compile(Guide("regex", "ab(a|b)"))
    first, second = grammar.matcher(), grammar.matcher()
    first.advance([2])
    assert allowed(first) == [0, 1]
    assert allowed(second) == [2]
    assert allowed(grammar.matcher()) == [2]


def test_a_token_that_breaks_the_grammar_changes_nothing():
    matcher = open_regex("abab")
    with pytest.raises(GrammarError, match="token 0 is not allowed here"):
        matcher.advance([2, 0, 0])
    assert allowed(matcher) == [2]


# What is refused, and in which words.


@pytest.mark.parametrize(
    ("type", "text", "reason"),
    [
        ("regex", "", "it is empty"),
        ("regex", "(a", "unclosed group"),
        ("regex", "a(?=b)", "look-around, including look-ahead and look-behind, is not supported"),
        ("regex", r"[^\s\S]", "no token is allowed here"),
        ("regex", "()", "it allows no text but the empty one"),
        ("regex", "(" * 5000 + "a" + ")" * 5000, "invalid regex"),
        ("json_schema", "{", "not JSON: Expecting property name"),
        ("json_schema", "[1]", r"\[1\], expected a schema, which is an object"),
        ("json_schema", '{"type": "strin"}', "Invalid type: strin"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "Unsatisfiable schema"),
        ("json_schema", '{"enum": []}', "Unsatisfiable schema"),
        ("json_schema", '{"not": {}}', "Unimplemented keys"),
        ("json_schema", '{"a":' * 9000 + "1" + "}" * 9000, "nested too deeply"),
        ("ebnf_grammar", 'root ::= "a" rest', "'rest' not found"),
        ("ebnf_grammar", "a|b", "it has no rule"),
        ("ebnf_grammar", "root ::= " + "(" * 5000, "recursion depth"),
    ],
)
def test_a_guide_that_cannot_work_is_refused_with_the_reason(type, text, reason):
    with pytest.raises(InputError, match=reason) as refused:
        GUIDANCE.compile(Guide(type, text))
    assert str(refused.value).startswith(f"{type} guide: ")
    assert len(str(refused.value)) < 1000


def test_a_text_that_the_vocabulary_cannot_spell_ends_its_request_only():
    matcher = open_regex("ac")  # no token has a c
    matcher.advance([0])
    assert matcher.mask().all()
    with pytest.raises(GrammarError, match="the grammar cannot go on: no token is allowed here"):
        matcher.advance([1])


def test_a_vocabulary_of_whole_letters_carries_a_grammar_too():
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, " ": 2, "가": 3}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<end>"])
    made = LlGuidance(tokenizer.to_str(), 5, frozenset({4}))
    matcher = made.compile(Guide("regex", "(a| )+[가b]")).matcher()
    assert allowed(matcher) == [0, 2]
    assert allowed(matcher, [2]) == [0, 1, 2, 3]
    assert allowed(matcher, [2, 3]) == [4]


def test_a_tokenizer_that_cannot_carry_a_grammar_is_refused():
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(InputError, match="this tokenizer cannot carry a grammar"):
        LlGuidance(tokenizer.to_str(), 3, frozenset({2}))


def test_without_an_end_token_there_is_no_grammar():
    with pytest.raises(InputError, match="names no end-of-text token"):
        LlGuidance("{}", 3, frozenset())


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(MissingDependencyError, match=r"spectool\[cpu\]"):
        LlGuidance("{}", 3, frozenset({2}))


# Guide types.


def test_json_is_any_object_or_array():
    matcher = JSON_GUIDANCE.compile(Guide("json")).matcher()
    assert [JSON_TOKENS[i] for i in allowed(matcher)] == ["{", "[", '{"']


def test_blanks_between_tokens_of_json_come_to_an_end():
    blank = JSON_TOKENS.index("Ġ")
    matcher = JSON_GUIDANCE.compile(Guide("json_schema", '{"type": "array"}')).matcher()
    matcher.advance([JSON_TOKENS.index("[")])
    assert matcher.prefix([blank] * 40) == 16


def test_an_ebnf_grammar_has_rules_and_may_recurse():
    grammar = GUIDANCE.compile(Guide("ebnf_grammar", 'root ::= "a" root "b" | "ab"'))
    matcher = grammar.matcher()
    assert matcher.prefix([0, 0, 2, 1, 1, END]) == 6
    assert matcher.prefix([0, 0, 2, 1, END]) == 4


def test_a_guide_is_compiled_once_and_the_oldest_is_forgotten():
    made = guidance()
    first = made.compile(Guide("regex", "ab"))
    assert made.compile(Guide("regex", "ab")) is first
    for size in range(1, 70):
        made.compile(Guide("regex", f"a{{{size}}}"))
    assert len(made._compiled) == 64
    assert made.compile(Guide("regex", "ab")) is not first


def test_a_schema_survives_its_round_trip_through_a_tokenizer_of_single_letters():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    matcher = JSON_GUIDANCE.compile(Guide("json_schema", json.dumps(schema))).matcher()
    spelled = [JSON_TOKENS.index(t) for t in ['{"', "a", '":', "Ġ", "-", "1", "2", "}"]]
    assert matcher.prefix([*spelled, len(JSON_TOKENS)]) == len(spelled) + 1
    assert matcher.prefix([*spelled[:-1], len(JSON_TOKENS)]) == len(spelled) - 1

"""Tokenizers: ids and text, special tokens, chats, and whether two of them agree."""

from __future__ import annotations

import json
import re

import pytest

from tests.tiny import write_checkpoint
from toolkit.checkpoint.source import open_source
from toolkit.checkpoint.tokenizer import load_tokenizer, write_tokenizer
from toolkit.errors import CheckpointError, InputError

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture
def model(tmp_path):
    return write_checkpoint(tmp_path / "model")


def edit(path, **changes):
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | changes))


def tokenizer_of(model, out="tokenizer"):
    write_tokenizer(open_source(str(model)), model.parent / out)
    return load_tokenizer(model.parent / out)


def test_text_goes_to_ids_and_back(model):
    tokenizer = tokenizer_of(model)
    ids = tokenizer.encode("the a in an x")
    assert tokenizer.decode(ids) == "the a in an x"
    assert tokenizer.token(ids[0]) == "the"


def test_special_tokens_are_skipped_only_when_asked(model):
    tokenizer = tokenizer_of(model)
    ids = tokenizer.encode("x</s>")
    assert ids[-1] == 1
    assert tokenizer.decode(ids) == "x"
    assert tokenizer.decode(ids, skip_special=False) == "x</s>"


def test_end_ids_are_all_that_any_file_names(model):
    assert tokenizer_of(model).eos_ids == {1}
    edit(model / "generation_config.json", eos_token_id=[7, 9])
    assert tokenizer_of(model).eos_ids == {1, 7, 9}


def test_ids_of_config_json_count_when_there_is_no_generation_config(model):
    edit(model / "config.json", eos_token_id=[4, 5], bos_token_id=3)
    edit(model / "tokenizer_config.json", eos_token=None, bos_token=None)
    tokenizer = tokenizer_of(model)
    assert (tokenizer.eos_ids, tokenizer.bos_id) == ({4, 5}, 3)


def test_a_special_token_may_be_written_as_an_object(model):
    edit(model / "tokenizer_config.json", eos_token={"content": "</s>", "lstrip": False})
    assert tokenizer_of(model).eos_ids == {1}


def test_a_chat_is_rendered_by_the_models_template(model):
    edit(model / "tokenizer_config.json", chat_template=TEMPLATE)
    tokenizer = tokenizer_of(model)
    ids = tokenizer.chat([{"role": "user", "content": "the x"}])
    assert tokenizer.decode(ids, skip_special=False) == "<s>user: the x\nassistant:"
    assert ids[0] == 0


def test_a_template_file_wins_and_named_templates_have_a_default(model):
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "named"}]
    edit(model / "tokenizer_config.json", chat_template=named)
    assert tokenizer_of(model).decode(tokenizer_of(model).chat([])) == "named"
    (model / "chat_template.jinja").write_text("file")
    assert tokenizer_of(model, "t2").decode(tokenizer_of(model, "t2").chat([])) == "file"


def test_without_a_template_a_chat_is_its_plain_text(model):
    tokenizer = tokenizer_of(model)
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert tokenizer.chat(messages) == tokenizer.encode("a\nb")


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{% for",
        "{{ messages[0].nothing.at.all }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_cannot_do_more_than_refuse(model, template):
    edit(model / "tokenizer_config.json", chat_template=template)
    tokenizer = tokenizer_of(model)
    with pytest.raises(InputError, match="chat template refused"):
        tokenizer.chat([{"role": "user", "content": "hi"}])


def rename(model, changes):
    path = model / "tokenizer.json"
    found = json.loads(path.read_text())
    vocab = found["model"]["vocab"]
    for old, new in changes.items():
        vocab[new] = vocab.pop(old)
    path.write_text(json.dumps(found))


def test_tokenizers_that_agree_have_no_differences(tmp_path, model):
    other = tokenizer_of(write_checkpoint(tmp_path / "b" / "model", seed=5))
    assert tokenizer_of(model).compare(other) == []


def test_the_first_differing_tokens_are_named(tmp_path, model):
    other = write_checkpoint(tmp_path / "b" / "model")
    rename(other, {"<unused3>": "hello", "<unused4>": "world"})
    [problem] = tokenizer_of(model).compare(tokenizer_of(other))
    assert problem.startswith("2 of 250 token ids differ: ")
    assert re.search(r"\d+ is '<unused3>' in one and 'hello' in the other", problem)


def test_rows_that_only_pad_are_tolerated_and_others_are_not(tmp_path, model):
    longer = write_checkpoint(tmp_path / "b" / "model", vocab_size=256)
    assert tokenizer_of(model).compare(tokenizer_of(longer)) == []
    rename(longer, {last_token(longer): "tool"})
    [problem] = tokenizer_of(model).compare(tokenizer_of(longer, "again"))
    assert problem == "1 token ids are only in one of the two: 255 'tool'"


def last_token(model):
    vocab = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    return max(vocab, key=vocab.get)


def test_another_end_of_text_is_a_difference(tmp_path, model):
    other = write_checkpoint(tmp_path / "b" / "model")
    edit(other / "tokenizer_config.json", eos_token="<s>")
    edit(other / "generation_config.json", eos_token_id=0)
    [problem] = tokenizer_of(model).compare(tokenizer_of(other))
    assert problem == "end of text is [1] in one and [0] in the other"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": {"type": "Nothing"}}'])
def test_a_damaged_tokenizer_is_refused(model, content):
    (model / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=r"tokenizer\.json: not a usable tokenizer"):
        tokenizer_of(model)


def test_a_damaged_tokenizer_config_is_refused(model):
    (model / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: not readable"):
        tokenizer_of(model)


def test_a_model_without_tokenizer_json_says_how_to_make_one(model):
    (model / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing; make one"):
        tokenizer_of(model)


def test_the_longest_token_bounds_every_text(tmp_path):
    from tests.engine_fixtures import write_byte_tokenizer
    from toolkit.checkpoint.tokenizer import load_tokenizer

    write_byte_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path).longest_token == len("<|im_start|>")

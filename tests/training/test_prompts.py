"""Topics x forms, the held-out split, and the lists that ship."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.training.conftest import write_prompts
from toolkit.bundled import bundled
from toolkit.errors import InputError
from toolkit.measure.prompts import load_prompt_sets
from toolkit.training.prompts import load_prompt_book

SHIPPED = bundled("recipes") / "smollm2" / "training"


def test_a_prompt_depends_on_its_number_alone(tmp_path):
    book = load_prompt_book(write_prompts(tmp_path))
    prompts = [book.prompt("train", 0, i) for i in range(50)]
    assert prompts == [book.prompt("train", 0, i) for i in range(50)]
    assert prompts != [book.prompt("train", 1, i) for i in range(50)]


def test_every_topic_comes_once_before_one_comes_again(tmp_path):
    book = load_prompt_book(write_prompts(tmp_path))
    topics = [
        book.prompt("train", 0, i).removeprefix("Tell ").removeprefix("What is ").rstrip(".?")
        for i in range(40)
    ]
    assert sorted(topics) == sorted(f"topic {i}" for i in range(40))


def test_splits_share_no_topic(tmp_path):
    book = load_prompt_book(write_prompts(tmp_path))
    assert all("held out" in book.prompt("heldout", 0, i) for i in range(20))
    assert not any("held out" in book.prompt("train", 0, i) for i in range(80))


def test_every_tenth_line_is_held_out_where_no_file_says_which(tmp_path):
    write_prompts(tmp_path)
    (tmp_path / "heldout_topics.txt").unlink()
    book = load_prompt_book(tmp_path)
    assert book.words["heldout", "topic"] == ("topic 9", "topic 19", "topic 29", "topic 39")
    assert "topic 9" not in book.words["train", "topic"]


def test_passages_are_whole_sentences_of_earlier_answers(tmp_path):
    write_prompts(tmp_path)
    (tmp_path / "forms.txt").write_text(
        "# chat 1\nTell {topic}.\n# edit 99\nShorten:\\n{passage}\n"
    )
    book = load_prompt_book(tmp_path)
    answer = f"This is a sentence {'that goes on and on ' * 4}and ends here. Cut o"
    found = {book.prompt("train", 0, i, ["Too short.", answer]) for i in range(50)}
    whole = answer.removesuffix(" Cut o")
    assert f"Shorten:\n{whole}" in found
    assert not any("Too short" in prompt or "Cut o" in prompt for prompt in found)
    assert not any("Shorten" in book.prompt("train", 0, i) for i in range(50))


def test_a_jsonl_file_of_whole_prompts(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"prompt {{{i}}}"}) for i in range(20)))
    book = load_prompt_book(path)
    assert book.words["heldout", "prompt"] == ("prompt {9}", "prompt {19}")
    assert {book.prompt("train", 0, i) for i in range(18)} == set(book.words["train", "prompt"])


def test_all_problems_at_once(tmp_path):
    (tmp_path / "forms.txt").write_text("# a 1\nSay {thing}.\n# b 1\nSay {word}.\n")
    (tmp_path / "words.txt").write_text("x\ny\n")
    (tmp_path / "heldout_words.txt").write_text("y\n")
    with pytest.raises(InputError) as found:
        load_prompt_book(tmp_path)
    assert "things.txt: not readable" in str(found.value)
    assert "heldout_words.txt: also in words.txt: y" in str(found.value)


class TestShipped:
    def test_more_than_1200_topics_a_tenth_of_them_held_out(self):
        book = load_prompt_book(SHIPPED)
        train, heldout = book.words["train", "topic"], book.words["heldout", "topic"]
        assert len(train) >= 1200
        assert 0.09 < len(heldout) / (len(train) + len(heldout)) < 0.11
        folded = [topic.casefold() for topic in (*train, *heldout)]
        assert len(set(folded)) == len(folded)

    def test_two_dozen_forms_most_of_them_chat(self):
        weights = {kind.name: kind.weight for kind in load_prompt_book(SHIPPED).kinds}
        assert sum(len(kind.forms) for kind in load_prompt_book(SHIPPED).kinds) >= 24
        assert weights["chat"] > 80
        assert set(weights) == {"chat", "code", "edit"}

    def test_no_prompt_that_is_measured_is_a_prompt_to_train_on(self):
        """English chat is measured on held-out topics; no topic of training is even mentioned."""
        book = load_prompt_book(SHIPPED)
        [found] = load_prompt_sets({"chat_en": "chat_en"})

        def any_of(topics):
            longest_first = sorted(topics, key=len, reverse=True)
            return re.compile(rf"\b({'|'.join(map(re.escape, longest_first))})\b", re.IGNORECASE)

        heldout = any_of(book.words["heldout", "topic"])
        trained = any_of(book.words["train", "topic"])
        for prompt in found.prompts:
            assert heldout.search(prompt.text), prompt.text
            # Retirement is one, the savings for it are held out.
            assert set(trained.findall(prompt.text)) <= {"retirement"}, prompt.text

    def test_the_readme_counts_them(self):
        text = Path(SHIPPED / "README.md").read_text(encoding="utf-8")
        book = load_prompt_book(SHIPPED)
        assert f"{len(book.words['train', 'topic']):,} everyday topics" in text
        assert f"{len(book.words['train', 'task'])} small programming tasks" in text
        assert f"{sum(len(kind.forms) for kind in book.kinds)} forms" in text

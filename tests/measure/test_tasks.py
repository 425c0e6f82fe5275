import json
from collections import Counter

import pytest

from toolkit.measure.subject import Answer, Gap, Question, Subject
from toolkit.measure.tasks import Task, check_tasks, choice_tasks, chosen, is_json, json_tasks


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"a": 1}', True),
        (" [1, 2]\n", True),
        ('```json\n{"a": [1]}\n```', True),
        ("```\n3\n```", True),
        ("", False),
        ('Here it is: {"a": 1}', False),
        ("{'a': 1}", False),
        ('{"a": 1', False),
        ("[" * 100_000, False),
    ],
)
def test_json_is_one_value_and_nothing_else(text, valid):
    assert is_json(text) is valid


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("The answer is C.", "C"),
        ("D. Because snow is cold", "D"),
        ("**A**", "A"),
        ("Apples", None),
        ("E", None),
        ("b", None),
    ],
)
def test_the_first_letter_by_itself_is_the_choice(text, letter):
    assert chosen(text) == letter


def test_the_bundled_questions_are_many_and_without_bias():
    tasks = choice_tasks()
    assert len(tasks) >= 40
    assert len({task.id for task in tasks}) == len({task.prompt for task in tasks}) == len(tasks)
    right = Counter(letter for task in tasks for letter in "ABCD" if task.right(letter))
    assert set(right.values()) == {len(tasks) // 4}  # always one letter is right a quarter
    assert all(f"\n{letter}. " in task.prompt for task in tasks for letter in "ABCD")
    assert len(json_tasks()) >= 10
    assert json_tasks()[0].right(json.dumps({"any": "value"}))


class FakeSubject(Subject):
    """Answers the right letter, or a wrong one in `wrong` when it speculates."""

    rounding = "float32"

    def __init__(self, wrong, gap):
        self.wrong, self._gap = wrong, gap

    def answer(self, questions, *, speculate, advance=None):
        texts = ["B" if speculate and i in self.wrong else "A" for i in range(len(questions))]
        return [Answer(tuple(text), text, None) for text in texts]

    def gap(self, question, common, pair):
        return Gap(self._gap, 0.1)


def report(wrong, gap, count=20):
    tasks = [Task(str(i), "?", "A".__eq__) for i in range(count)]
    questions = [Question(domain="t", id=t.id, text=t.prompt, max_tokens=4) for t in tasks]
    return check_tasks("choice", FakeSubject(wrong, gap), tasks, questions, alpha=0.001)


def test_equal_answers_are_worth_the_same():
    found = report(wrong=(), gap=1.0)
    assert (found.plain, found.speculative, found.passed) == (20, 20, True)
    assert found.conclusion() == "20 of 20 right without speculation, 20 with it"


def test_an_answer_lost_beyond_a_tie_is_a_bug():
    found = report(wrong=(3,), gap=1.0)
    assert (found.speculative, found.lost, found.passed) == (19, 1, False)
    assert "no rounding excuses it" in found.conclusion()


def test_ties_are_no_bug_until_they_are_lost_too_often():
    few = report(wrong=range(5), gap=0.01)
    assert few.p_value == 1 / 2**5  # five lost, none won
    assert few.passed
    many = report(wrong=range(10), gap=0.01)
    assert many.p_value == 1 / 2**10
    assert not many.passed
    assert "too many lost for chance" in many.conclusion()

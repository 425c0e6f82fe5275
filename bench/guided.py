"""JSON-schema output with speculation on and off: python bench/guided.py --recipe NAME

Asks for JSON about people, places, books, meals and errands, each in a sentence to extract from or
in a free question, under the schema of its kind. What is counted: outputs that their schema allows,
texts that are the same with and without speculation, and how much of the drafts was accepted. In
float32, so that texts may be compared; two threads on a shared machine, so times say little.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from toolkit.progress import progress

TEXT, COUNT = {"type": "string", "maxLength": 40}, {"type": "integer", "minimum": 0}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _texts(most: int) -> dict[str, Any]:
    return {"type": "array", "items": TEXT, "minItems": 1, "maxItems": most}


KINDS: dict[str, tuple[dict[str, Any], str, str]] = {  # schema, a sentence, a free question
    "person": (
        _object(name=TEXT, age={**COUNT, "maximum": 120}, hobbies=_texts(3)),
        "{0} is {2} years old and likes {1}.",
        "Invent a person called {0} who likes {1}.",
    ),
    "place": (
        _object(city=TEXT, population={**COUNT, "maximum": 10**8}, coastal={"type": "boolean"}),
        "{0} lives in {3}, a town of {2}000 people by the sea.",
        "Describe the town of {3}.",
    ),
    "book": (
        _object(title=TEXT, author=TEXT, year={**COUNT, "maximum": 2100}, genre={
            "enum": ["novel", "poetry", "science", "history"]}),
        'In 19{2} {0} wrote "A Life of {1}", a history.',
        "Name a book about {1}.",
    ),
    "meal": (
        _object(dish=TEXT, ingredients=_texts(4), minutes={**COUNT, "maximum": 600}),
        "For the soup {0} takes carrots, onions and salt; it cooks for {2} minutes.",
        "Suggest a meal for {0}.",
    ),
    "errand": (
        _object(task=TEXT, due={"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"},
                priority={"enum": ["low", "medium", "high"]}),
        "{0} must learn {1} by 2027-05-{2}; that is urgent, so the priority is high.",
        "Write down an errand about {1} for {0}.",
    ),
}  # fmt: skip
NAMES = ["Ann", "Bilal", "Chen", "Dora", "Emil", "Fatou", "Goran", "Hana", "Ivo", "Jun"]
THINGS = ["chess", "rowing", "old maps", "tea"]
TOWNS = ["Porto", "Lund", "Nara", "Split"]


def prompts() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(kind, prompt, schema) of 200 prompts: 40 a kind, half with a sentence to extract from."""
    for kind, (schema, sentence, question) in KINDS.items():
        for number in range(40):
            name, turn = NAMES[number % 10], number // 10
            words = (name, THINGS[turn], str(11 + (number * 7) % 17), TOWNS[turn])
            keys = ", ".join(schema["properties"])
            if number % 2:
                text = f"Extract {keys} as JSON from: {sentence.format(*words)}"
            else:
                text = f"{question.format(*words)} Answer in JSON with the keys {keys}."
            yield kind, text, schema


def main() -> int:
    options = _options()
    runtime = _runtime(options.recipe)
    asked = list(prompts())[:: options.every]
    plain = outputs(runtime, asked, 0, options.max_tokens)
    drafted = outputs(runtime, asked, options.k, options.max_tokens)
    result = summary(runtime, asked, plain, drafted)
    print(json.dumps(result, indent=2))
    return 0 if result["valid_plain"] == result["valid_speculative"] == len(asked) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="smollm2/135m_ngram")
    parser.add_argument("--k", type=int, default=None, help="default: as the recipe says")
    parser.add_argument("--every", type=int, default=1, help="only every Nth prompt")
    parser.add_argument("--max-tokens", type=int, default=200)
    return parser.parse_args()


def _runtime(recipe: str) -> Any:
    from toolkit.commands.runtime import runtime_of
    from toolkit.recipe.load import load_recipe

    float32 = ["target.dtype=float32"]
    if "draft" in load_recipe(recipe).models():
        float32.append("speculation.draft.dtype=float32")
    return runtime_of(recipe, float32, None, offline=False)


def outputs(
    runtime: Any, asked: Sequence[tuple[str, str, Any]], k: int | None, max_tokens: int
) -> list[Any]:
    """Greedy answers under the schemas, in ragged batches of what the engine takes."""
    from toolkit.speculation.grammar import Guide
    from toolkit.speculation.request import Request

    requests = [
        Request(
            tuple(runtime.tokenizer.chat([{"role": "user", "content": text}])),
            max_tokens,
            stop_tokens=frozenset(runtime.tokenizer.eos_ids),
            grammar=runtime.grammar(Guide("json_schema", json.dumps(schema))),
        )
        for _, text, schema in asked
    ]
    loop, size = runtime.loop(draft_len=k), runtime.target.max_batch_size
    made: list[Any] = []
    with progress("plain" if k == 0 else "speculative", total=len(requests)) as bar:
        for start in range(0, len(requests), size):
            made += loop.generate(requests[start : start + size])
            bar.advance(len(made) - start)
    return made


def summary(
    runtime: Any,
    asked: Sequence[tuple[str, str, Any]],
    plain: Sequence[Any],
    drafted: Sequence[Any],
) -> dict[str, Any]:
    from jsonschema import Draft202012Validator

    def valid(output: Any, schema: Any) -> bool:
        if output.finish_reason != "stop":
            return False
        answer = json.loads(runtime.tokenizer.decode(output.tokens))
        return not list(Draft202012Validator(schema).iter_errors(answer))

    def counts(outputs: Sequence[Any]) -> dict[str, Any]:
        stats = [output.stats for output in outputs]
        steps, accepted = sum(s.verify_steps for s in stats), sum(s.accepted_tokens for s in stats)
        drafted = sum(s.draft_tokens for s in stats)
        return {
            "output_tokens": sum(s.output_tokens for s in stats),
            "verify_steps": steps,
            "draft_tokens": drafted,
            "accepted_tokens": accepted,
            "acceptance_rate": round(accepted / drafted, 3) if drafted else None,
            "acceptance_length": round(1 + accepted / steps, 3),
        }

    schemas = [schema for _, _, schema in asked]
    pairs = list(zip(plain, drafted, strict=True))
    return {
        "recipe": runtime.recipe.name,
        "prompts": len(asked),
        "valid_plain": sum(map(valid, plain, schemas)),
        "valid_speculative": sum(map(valid, drafted, schemas)),
        "same_text": sum(a.tokens == b.tokens for a, b in pairs),
        "speculative": counts(drafted),
        "kinds": {
            kind: counts([d for d, (k, _, _) in zip(drafted, asked, strict=True) if k == kind])
            for kind in KINDS
        },
        "answers": [runtime.tokenizer.decode(output.tokens) for output in drafted[::37]],
    }


if __name__ == "__main__":
    sys.exit(main())

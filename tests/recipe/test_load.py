"""Layers, overrides, and every problem of a recipe at once with its place."""

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import InputError, RecipeError
from toolkit.recipe.load import bundled_recipes, dump_recipe, load_recipe
from toolkit.recipe.schema import ModelSpec, Recipe, expand_range
from toolkit.registry import DRAFTERS
from toolkit.speculation.drafters.draft_target import DraftTargetSpeculation
from toolkit.speculation.drafters.ngram import NGramSpeculation

GOOD = """\
name: small
target: {checkpoint: org/model}
speculation:
  drafter: ngram
  max_draft_len: 6
"""
DRAFT = """\
name: small
target: {checkpoint: org/model}
speculation:
  drafter: draft_target
  max_draft_len: 6
  draft: {checkpoint: org/draft}
"""


def problems(path, *overrides):
    with pytest.raises(RecipeError) as raised:
        load_recipe(path, overrides)
    return raised.value.problems


def test_all_problems_come_at_once_with_path_line_found_and_allowed(write):
    path = write(
        """\
name: my name
backend: pytorsh
target:
  pth: x
  chekpoint: y
  dtype: fp16
  parallel: {tp: 0}
speculation:
  drafter: ngram
  max_draft_len: '4'
  max_matching_ngram_sise: 3
engine: {max_input_len: 100, max_seq_len: 50, max_batch_size: yes}
tune:
  k: 8..2
  batch: [1, two]
  sampling: 3
serve: {layout: [bls]}
"""
    )
    assert problems(path) == [
        "name: 'my name' does not match ^[A-Za-z0-9][A-Za-z0-9._-]*$ (line 1)",
        "backend: 'pytorsh' is not one of cpu, tensorrt, pytorch; did you mean 'pytorch'? (line 2)",
        "target.checkpoint: required (line 3)",
        "target.pth: unknown key (known: checkpoint, revision, tokenizer, dtype, quantization, "
        "parallel, layers, trust_remote_code) (line 4)",
        "target.chekpoint: unknown key; did you mean 'checkpoint'? (line 5)",
        "target.dtype: 'fp16' is not one of float32, float16, bfloat16 (line 6)",
        "target.parallel.tp: must be at least 1, got 0 (line 7)",
        "speculation.max_draft_len: expected a whole number, got '4' (line 10)",
        "speculation.max_matching_ngram_sise: unknown key; did you mean "
        "'max_matching_ngram_size'? (line 11)",
        "engine.max_batch_size: expected a whole number, got true (line 12)",
        "engine.max_seq_len: must be above max_input_len (100): prompt plus output (line 12)",
        "tune.k: range '8..2' runs backwards; write 2..8 (line 14)",
        "tune.batch[1]: expected a whole number, got 'two' (line 15)",
        "tune.sampling: expected a mapping, got 3 (line 16)",
        "serve.layout: a list is not one of bls, inprocess (line 17)",
    ]


def every_key():
    """Every key path of a recipe with the ngram drafter, sections included."""
    recipe = Recipe(
        name="x", target=ModelSpec(checkpoint="o/m"), speculation=NGramSpeculation(drafter="ngram")
    )
    data = recipe.model_dump(mode="json")

    def walk(value, here):
        for key, below in value.items():
            yield (*here, key)
            if isinstance(below, dict) and key != "prompts":
                yield from walk(below, (*here, key))

    return sorted(walk(data, ()))


@pytest.mark.parametrize("path", every_key(), ids=".".join)
def test_a_typo_in_any_key_names_that_key_and_the_right_one(write, path):
    recipe = load_recipe(write(GOOD))
    data = recipe.model_dump(mode="json")
    holder = data
    for part in path[:-1]:
        holder = holder[part]
    typo = f"{path[-1]}q"
    holder[typo] = holder.pop(path[-1])
    found = problems(write(yaml.safe_dump(data, sort_keys=False), "typo.yaml"))
    wanted = ".".join((*path[:-1], typo))
    if path == ("speculation", "drafter"):  # without it nobody knows the section's other keys
        assert any("speculation.drafter: required" in p and f"'{typo}'" in p for p in found)
    else:
        hint = f"{wanted}: unknown key; did you mean '{path[-1]}'?"
        assert any(problem.startswith(hint) for problem in found)


def test_what_is_missing_is_placed_at_the_section_that_lacks_it(write):
    assert problems(write("name: x\nspeculation:\n  drafter: ngram\ntarget: {}\n")) == [
        "target.checkpoint: required (line 4)"
    ]
    assert problems(write("name: x\n")) == [
        "target: required (line 1)",
        "speculation: required (line 1)",
    ]


def test_an_unknown_drafter_hides_no_other_problem_and_invents_none(write):
    text = GOOD.replace("ngram", "ngramm").replace("max_draft_len: 6", "heads: 4")
    assert problems(write(text + "engine: {max_batch_size: 0}\n")) == [
        "speculation.drafter: unknown drafter 'ngramm'; did you mean 'ngram'? "
        f"(known: {', '.join(DRAFTERS)}) (line 4)",
        "engine.max_batch_size: must be at least 1, got 0 (line 6)",
    ]


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("speculation: {}", "speculation.drafter: required: one of none, draft_target, ngram"),
        ("speculation: {drafter: 3}", "speculation.drafter: unknown drafter 3"),
        ("speculation: ngram", "speculation: expected a mapping, got 'ngram'"),
        ("speculation: [ngram]", "speculation: expected a mapping, got a list"),
        ("speculation: null", "speculation: expected a mapping, got nothing (null)"),
        ("speculation: {drafter: draft_target}", "speculation.draft: required"),
    ],
)
def test_a_speculation_section_that_says_too_little(write, section, says):
    found = problems(write(f"name: x\ntarget: {{checkpoint: o/m}}\n{section}\n"))
    assert len(found) == 1
    assert found[0].startswith(says)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("serve: {grpc_port: 8000}", "serve.grpc_port: 8000 is also http_port"),
        ("target: {checkpoint: o/m, trust_remote_code: true}", "target.trust_remote_code"),
        ("tensorrt_llm: 1.2", "tensorrt_llm: expected text, got 1.2; put it in quotes"),
        ("engine: {max_num_tokens: .inf}", "engine.max_num_tokens: expected a whole number"),
        ("tune: {sampling: {temperature: .nan}}", "tune.sampling.temperature: must be"),
        ("tune: {k: []}", "tune.k: needs at least 1 value(s), got 0"),
        ("tune: {k: 0}", "tune.k[0]: must be at least 1, got 0"),
        ("tune: {k: 1..9999999}", "tune.k: range '1..9999999' has more than 4096 values"),
        ("tune: {k: a..b}", "tune.k: 'a..b' is not a number or a range like 2..8"),
        ("tune: {prompts: {}}", "tune.prompts: needs at least 1 value(s), got 0"),
        ("name: ''", "name: must not be empty"),
    ],
)
def test_single_mistakes(write, line, says):
    key = line.partition(":")[0]
    kept = "\n".join(row for row in GOOD.splitlines() if not row.startswith(f"{key}:"))
    found = problems(write(f"{kept}\n{line}\n"))
    assert len(found) == 1
    assert found[0].startswith(says)


@pytest.mark.parametrize(
    ("lengths", "problem"),
    [
        ("{policy: schedule}", "empty; policy: schedule needs entries"),
        ("{schedule: [{batch: 1, draft_len: 2}]}", "has no meaning with policy: fixed"),
        (
            "{policy: schedule, schedule: [{batch: 4, draft_len: 0}, {batch: 1, draft_len: 2}]}",
            "batch sizes [4, 1] must ascend",
        ),
        (
            "{policy: schedule, schedule: [{batch: 1, draft_len: 9}]}",
            "9 is above max_draft_len (6)",
        ),
    ],
)
def test_a_schedule_must_make_sense(write, lengths, problem):
    with pytest.raises(RecipeError, match=re.escape(problem)):
        load_recipe(write(GOOD + f"  draft_length: {lengths}\n"))


def test_the_smallest_draft_length_must_fit(write):
    text = GOOD + "  draft_length: {policy: adaptive, min: 7}\n"
    assert problems(write(text)) == [
        "speculation.draft_length.min: 7 is above max_draft_len (6) (line 6)"
    ]


# --set


def test_set_overrides_any_field_and_reads_yaml(write):
    recipe = load_recipe(
        write(GOOD),
        ["engine.max_batch_size=3", "tune.k=2..4,9", "target.layers=[1, 0]", "serve={layout: bls}"],
    )
    assert recipe.engine.max_batch_size == 3
    assert recipe.tune.k == (2, 3, 4, 9)
    assert recipe.target.layers == (1, 0)
    assert recipe.serve.layout == "bls"


def test_the_last_of_two_overrides_wins(write):
    recipe = load_recipe(write(GOOD), ["name=a", "name=b"])
    assert recipe.name == "b"


def test_mistakes_in_overrides_say_so_instead_of_a_line(write):
    assert problems(
        write(GOOD),
        "engine.max_bach_size=3",
        "nonsense",
        "a..b=1",
        "=1",
        "name.first=x",
        "tune.k=[1",
        "engine.max_batch_size=lots",
    ) == [
        "engine.max_bach_size: unknown key; did you mean 'max_batch_size'? (--set)",
        "nonsense: write it as key.path=value (--set)",
        "a..b=1: write it as key.path=value (--set)",
        "=1: write it as key.path=value (--set)",
        "name.first: name is a single value or a list, it has no keys (--set)",
        "tune.k: not usable YAML: expected ',' or ']', but got '<stream end>' (--set)",
        "engine.max_batch_size: expected a whole number, got 'lots' (--set)",
    ]


def test_setting_another_drafter_drops_the_old_ones_options(write):
    overrides = ["speculation.max_matching_ngram_size=2", "speculation.drafter=ngram"]
    recipe = load_recipe(write(DRAFT), overrides)
    assert recipe.speculation == NGramSpeculation(drafter="ngram", max_matching_ngram_size=2)


def test_setting_the_same_drafter_keeps_them(write):
    recipe = load_recipe(write(DRAFT), ["speculation.drafter=draft_target"])
    assert isinstance(recipe.speculation, DraftTargetSpeculation)
    assert recipe.speculation.max_draft_len == 6


# names


@pytest.mark.parametrize("name", ["smollm2/135m_ngram", "smollm2/135m_ngram.yaml"])
def test_bundled_recipes_load_by_name(name):
    assert load_recipe(name).name == "smollm2-135m-ngram"


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_every_bundled_recipe_opens_with_what_it_is_and_how_to_run_it(name):
    text = bundled_recipes()[name].read_text(encoding="utf-8")
    head = text[: text.index("\nname:")] if "\nname:" in text else text
    assert text.startswith("# ")
    assert f"#   spectool build {name}" in head
    assert "--set " in head
    load_recipe(name)


@pytest.mark.parametrize("name", ["../pyproject", "smollm2", "smollm2/../smollm2/135m_ngram", ""])
def test_a_name_is_no_way_out_of_the_bundled_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        load_recipe(name)


def test_a_near_miss_of_a_bundled_name_is_told():
    with pytest.raises(InputError, match=r"did you mean 'smollm2/135m_ngram'\?"):
        load_recipe("smollm2/135m_ngrams")


def test_a_directory_is_not_a_recipe(tmp_path):
    with pytest.raises(InputError, match="is a directory"):
        load_recipe(str(tmp_path))


# ranges and the way back


@pytest.mark.parametrize(
    ("written", "means"),
    [
        (4, (4,)),
        ("4", (4,)),
        ("2..5", (2, 3, 4, 5)),
        ("1,2,8..10", (1, 2, 8, 9, 10)),
        ("5,1,5", (1, 5)),
        (" 2 .. 3 ", (2, 3)),
    ],
)
def test_ranges(written, means):
    assert expand_range(written) == means


counts = st.integers(1, 512)
texts = st.text(min_size=1, max_size=30)
recipes = st.builds(
    Recipe,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    target=st.builds(
        ModelSpec,
        checkpoint=st.sampled_from(["org/model", "/models/a b", "pip:x==1.0", "/m/no: yes#1"]),
        revision=st.none() | texts,
        dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
        layers=st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=4).map(tuple),
    ),
    speculation=st.builds(
        NGramSpeculation, drafter=st.just("ngram"), max_draft_len=counts,
        max_matching_ngram_size=st.integers(1, 64),
    ),
    tensorrt_llm=st.sampled_from(["1.2.1", "1.2", "0.16"]) | texts,
)  # fmt: skip


@given(recipes)
def test_a_dumped_recipe_loads_back_to_the_same_recipe(tmp_path_factory, recipe):
    path = tmp_path_factory.mktemp("dump") / "r.yaml"
    path.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(str(path)) == recipe

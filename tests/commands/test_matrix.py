"""The support matrix says what the drafters answer, and the README's copy is current."""

import json
import re
from pathlib import Path

from toolkit.commands.matrix import markdown, support
from toolkit.registry import BACKENDS, DRAFTERS

ROOT = Path(__file__).parents[2]
# Read by hand against the documentation: engines end with 1.2, PARD came with the first previews
# of 1.3, DFlash, DSpark and SA with its late ones.
EXPECTED = """\
| drafter | cpu | tensorrt 0.16.0 to 1.2.1 | pytorch 1.0.0 to 1.2.1 | pytorch 1.3.0rc1 | pytorch 1.3.0rc24 to 1.4.0rc4 |
| --- | --- | --- | --- | --- | --- |
| `draft_target` | yes | yes | yes | yes | yes |
| `ngram` | yes | yes | yes | yes | yes |
| `suffix` | yes | - | - | - | - |
| `self_speculation` | yes | - | - | - | - |
| `medusa` | yes | yes | - | - | - |
| `eagle` | yes | yes | - | - | - |
| `eagle3` | yes | - | yes | yes | yes |
| `mtp` | - | - | yes | yes | yes |
| `pard` | - | - | - | yes | yes |
| `dflash` | - | - | - | - | yes |
| `dspark` | - | - | - | - | yes |
| `sa` | - | - | - | - | yes |
| `redrafter` | - | yes | - | - | - |
| `lookahead` | yes | yes | - | - | - |"""  # noqa: E501


def test_the_table_is_the_one_that_was_read():
    assert markdown() == EXPECTED


def test_the_copy_in_the_readme_is_current():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- matrix -->\n(.*?)\n<!-- /matrix -->", text, flags=re.DOTALL)
    assert found is not None
    assert found[1].strip() == markdown()


def test_every_pair_has_an_answer_and_every_no_a_reason():
    entries = support()
    pairs = {(entry["drafter"], entry["backend"]) for entry in entries}
    assert pairs == {(drafter, backend) for drafter in DRAFTERS for backend in BACKENDS}
    for entry in entries:
        assert entry["reason"] is None or len(entry["reason"].split()) > 3


def test_doctor_prints_it_with_the_reasons(spectool):
    ran = spectool("doctor", "--matrix")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(EXPECTED)
    assert "eagle3: TensorRT-LLM's engines have no place" in ran.out
    assert json.loads(spectool("doctor", "--matrix", "--json").out) == support()

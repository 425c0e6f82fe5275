"""What does not stand in the way, but explains a low acceptance or a surprise later."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import tiny_heads as heads
from tests.preflight.lab import TREE
from tests.preflight.rows import tokenizer_config
from tests.tiny import VOCAB


def notes(spectool, lab, *words):
    ran = spectool("check", lab.path(), "--json", *lab.arguments, *words)
    report = json.loads(ran.out)
    assert report["problems"] == []
    return report["notes"]


def test_rows_that_only_pad_are_named_with_both_numbers(spectool, lab):
    said = notes(spectool, lab.draft(vocab_size=VOCAB + 6))
    assert any(
        note.startswith("draft: vocab_size 256, the target's 250: both tokenizers have the same")
        for note in said
    )


def test_a_base_model_that_drafts_for_an_instruct_model(spectool, lab):
    tokenizer_config(lab.draft().model("target"), "target", chat_template="{{ messages }}")
    assert any("has no chat template" in note for note in notes(spectool, lab))


def test_another_chat_template(spectool, lab):
    lab.draft().model("target")
    tokenizer_config(lab, "target", chat_template="{{ messages }}")
    tokenizer_config(lab, "draft", chat_template="{{ bos_token }}{{ messages }}")
    assert any("its chat template differs" in note for note in notes(spectool, lab))


def test_another_begin_of_text(spectool, lab):
    lab.draft()
    tokenizer_config(lab, "draft", bos_token="!")
    assert any("begin of text is" in note for note in notes(spectool, lab))


@pytest.mark.parametrize(
    ("base", "noted"), [("lmsys/vicuna-7b-v1.3", True), ("someone/target", False), ("", False)]
)
def test_heads_that_were_trained_for_another_model(spectool, lab, base, noted):
    lab.medusa()
    config = {"base_model_name_or_path": base, "medusa_num_heads": 4}
    (lab.folder / "heads" / "config.json").write_text(json.dumps(config))
    said = [note for note in notes(spectool, lab) if "trained for" in note]
    assert bool(said) == noted


def test_a_head_count_that_config_json_has_wrong(spectool, lab):
    lab.medusa(heads.medusa(heads=3), medusa_choices=TREE)
    (lab.folder / "heads" / "config.json").write_text('{"medusa_num_heads": 2}')
    assert any("medusa_num_heads is 2, 3 of the file's" in note for note in notes(spectool, lab))


def test_modes_that_upstream_does_not_test_on_blackwell(spectool, lab):
    said = {gpu: notes(spectool, lab.medusa(), "--gpu", gpu) for gpu in ("b200", "h100")}
    assert any("does not test medusa engines on sm_100" in note for note in said["b200"])
    assert not any("does not test" in note for note in said["h100"])


def test_every_check_is_reported(spectool, lab):
    ran = spectool("check", lab.draft(vocab_size=VOCAB + 6).path(), "--json")
    checks = json.loads(ran.out)["checks"]
    assert list(checks) == [f"P{number}" for number in range(1, 10)]
    assert checks["P3"] == "notes"
    assert checks["P4"] == "ok"


@pytest.mark.parametrize("word", ["target", "=x", "target="])
def test_an_engine_is_named_by_role(spectool, lab, word):
    ran = spectool("check", lab.path(), "--engine", word)
    assert ran.code == 2
    assert "expected ROLE=DIR" in ran.err


def test_check_runs_where_no_heavy_package_is_installed(lab):
    """In a fresh interpreter, so that nothing imported elsewhere helps."""
    path = lab.draft().path()
    code = (
        "import sys\n"
        "for name in ('torch', 'tensorrt_llm', 'tensorrt', 'openvino', 'transformers'):\n"
        "    sys.modules[name] = None\n"
        "from toolkit.cli import main\n"
        f"main(['check', {str(path)!r}, '--gpu', 'h100', '--offline'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("no problems found\n")

"""The README is true: its commands run, its options exist, its file map is the tree's."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.serving.test_ports import free_ports
from toolkit.cli import COMMANDS, app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SPECTOOL = str(Path(sys.executable).with_name("spectool"))


def commands(text):
    """The command lines of every ```sh block, comments and continuations resolved."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def section(title):
    return re.split(r"^## ", README.split(f"\n## {title}\n", 1)[1], flags=re.MULTILINE)[0]


def test_the_readme_has_commands_of_every_kind():
    assert {words[0] for words in commands(README)} >= {"make", "spectool"}


@pytest.mark.parametrize("words", commands(README), ids=shlex.join)
def test_every_command_and_option_in_the_readme_exists(words):
    if words[0] == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert words[1] in targets
    elif words[0] == "spectool":
        assert words[1] in COMMANDS
        command = typer.main.get_command(app).get_command(None, words[1])
        if subcommands := getattr(command, "commands", None):
            command = subcommands[words[2]]
        known = {name for option in command.params for name in option.opts}
        given = {word.partition("=")[0] for word in words[2:] if word.startswith("-")}
        assert given <= known


@pytest.mark.model
@pytest.mark.triton
@pytest.mark.timeout(600)
def test_the_walk_from_recipe_to_server_runs_as_written(tmp_path, monkeypatch, smollm2_gguf):
    monkeypatch.chdir(tmp_path)
    for words in commands(section("One recipe, end to end")):
        if words[1] == "serve":  # the default ports may be somebody's
            http, grpc, metrics = map(str, free_ports(3))
            words = [*words, "--http-port", http, "--grpc-port", grpc, "--metrics-port", metrics]
        done = subprocess.run([SPECTOOL, *words[1:]], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "results" / "report.html").is_file()


def test_the_file_map_names_every_part():
    told = set(re.findall(r"^\s*(?:toolkit/)?([a-z_0-9]+/)", section("Where things are"), re.M))
    packages = (ROOT / "toolkit").glob("*/__init__.py")
    parts = {f"{init.parent.name}/" for init in packages}
    assert parts <= told
    for name in told - parts:
        assert (ROOT / name).is_dir()

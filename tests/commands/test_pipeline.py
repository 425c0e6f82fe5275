"""`spectool init --ci`: valid files whose scripts, run here, decide when a GPU is needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from tests.recipes_for_tests import write_recipe
from toolkit import cli
from toolkit.commands.pipeline import SYSTEMS

ROOT = Path(__file__).parents[2]
SCHEMA = {"github": "vendor.github-workflows", "gitlab": "vendor.gitlab-ci"}
# Stands for spectool and says how it was called.
RECORDER = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
"""
REAL = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m toolkit.cli "$@"\n'
# Stands for Python where a script installs something: it makes the environment, and it is there.
FAKE_PYTHON = """#!/bin/sh
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi
"""


def invalid(system, path):
    """What the system's own schema says against a file."""
    words = ["-m", "check_jsonschema", "--builtin-schema", SCHEMA[system], str(path)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    return done.stdout if done.returncode else ""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with two recipes, one of them in a folder."""
    root = tmp_path / "repository"
    (root / "recipes").mkdir(parents=True)
    path = write_recipe(root)
    other = path.read_text(encoding="utf-8").replace("./model", "../model")
    (root / "recipes" / "other.yaml").write_text(other, encoding="utf-8")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def run(repository, tmp_path, monkeypatch):
    """Run a job's scripts as its runner would; `run.calls` are the calls of spectool."""
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()

    def install(name, text):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)

    for name in ("python", "python3"):
        install(name, FAKE_PYTHON)
    files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_PATH")}

    def go(job, variables, spectool=RECORDER):
        install("spectool", spectool)
        environment = {
            **variables,
            **{name: str(path) for name, path in files.items()},
            "PATH": f"{programs}:/usr/bin:/bin",
            "CALLS": str(calls),
            "RUNNER_TEMP": str(tmp_path),
            "PLAN_DIGEST": "0123",
            "SPECTOOL_STORE": str(tmp_path / "store"),
            "SPECTOOL_OFFLINE": "1",
        }
        for script in scripts(job):
            shell = ["bash", "-e", "-o", "pipefail", "-c", script]
            done = subprocess.run(shell, env=environment, capture_output=True, text=True)
            if done.returncode:
                return script, done.stderr
        return None

    go.outputs = lambda: dict(
        line.split("=") for line in files["GITHUB_OUTPUT"].read_text().splitlines()
    )
    go.calls = lambda: [json.loads(line) for line in calls.read_text().splitlines()]
    return go


def scripts(job):
    """Each GitHub step has a shell of its own, all lines of a GitLab job share one."""
    if "steps" in job:
        return [step["run"] for step in job["steps"] if "run" in step]
    return ["\n".join(job["script"])]


def read(name):
    return yaml.safe_load(Path(name).read_text(encoding="utf-8"))


def jobs(system):
    """(job, variables) of every job that has a script."""
    documents = [read(name) for name in SYSTEMS[system]]
    variables = documents[0]["env" if system == "github" else "variables"]
    parts = [document.get("jobs", document) for document in documents]
    return [
        (job, variables)
        for part in parts
        for job in part.values()
        if isinstance(job, dict) and {"steps", "script"} & job.keys()
    ]


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_files_are_valid_by_the_systems_own_schema(spectool, repository, system):
    ran = spectool("init", "--ci", system, "r.yaml", "recipes/other.yaml")
    assert (ran.code, ran.err) == (0, "")
    for name in SYSTEMS[system]:
        assert f"{name} written" in ran.out
        assert invalid(system, name) == ""
        assert "<<" not in Path(name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("system", "good", "bad"),
    [("github", "runs-on:", "run-on:"), ("gitlab", "policy: pull", "policy: sometimes")],
)
def test_the_schema_would_find_a_mistake(spectool, repository, system, good, bad):
    spectool("init", "--ci", system, "r.yaml")
    path = Path(next(iter(SYSTEMS[system])))
    path.write_text(path.read_text(encoding="utf-8").replace(good, bad, 1), encoding="utf-8")
    assert "Schema validation errors" in invalid(system, path)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_command_line_is_one_of_ours(spectool, repository, run, system):
    spectool("init", "--ci", system, "r.yaml", "recipes/other.yaml")
    for job, variables in jobs(system):
        Path("plans").mkdir(exist_ok=True)
        Path("plans/digests").touch()  # written by a plan, not by its recorder
        assert run(job, variables) is None
    calls = run.calls()
    for recipe in ("r.yaml", "recipes/other.yaml"):
        assert ["check", recipe] in calls
        assert ["plan", recipe, "--json"] in calls
        assert ["plan", recipe, "--digest"] in calls
        assert ["build", recipe, "--junit", f"reports/{recipe.replace('/', '-')}.xml"] in calls
    group = typer.main.get_command(cli.app)
    for argv in calls:
        context = group.make_context("spectool", argv[:])
        name, command, rest = group.resolve_command(context, argv[:])
        command.make_context(name, rest, parent=context)


def plan_digest(run, spectool):
    """What the plan job of the GitHub workflow, run for real, hands to its build job."""
    (job, variables), _ = jobs("github")
    assert run(job, variables, REAL) is None
    digest = run.outputs()["digest"]
    for path in Path("plans").iterdir():
        path.unlink()
    return digest


def test_github_builds_when_bytes_would_change_and_only_then(spectool, repository, run):
    spectool("init", "--ci", "github", "r.yaml")
    path = repository / "r.yaml"
    text = path.read_text(encoding="utf-8")
    first = plan_digest(run, spectool)
    assert len(first) == 32
    path.write_text(f"# a comment\n{text}".replace("name: tiny", "name: other"), encoding="utf-8")
    assert plan_digest(run, spectool) == first
    path.write_text(text.replace("max_seq_len: 64", "max_seq_len: 128"), encoding="utf-8")
    assert plan_digest(run, spectool) != first


def test_gitlab_starts_the_build_only_for_a_digest_that_was_not_built(spectool, repository, run):
    spectool("init", "--ci", "gitlab", "r.yaml")
    plan, build = jobs("gitlab")[:2]
    assert run(*plan, REAL) is None
    child = read("spectool-pipeline.yml")
    assert invalid("gitlab", "spectool-pipeline.yml") == ""
    assert child["build"] == build[0]
    built = Path(".spectool-built") / child["variables"]["PLAN_DIGEST"]
    built.parent.mkdir()
    built.touch()
    Path("plans/digests").unlink()
    assert run(*plan, REAL) is None
    child = read("spectool-pipeline.yml")
    assert invalid("gitlab", "spectool-pipeline.yml") == ""
    assert set(child) == {"variables", "unchanged"}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_recipe_with_a_problem_fails_the_plan_job(spectool, repository, run, system):
    spectool("init", "--ci", system, "r.yaml", "recipes/other.yaml")
    path = repository / "r.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "tunee: {}\n", encoding="utf-8")
    script, said = run(*jobs(system)[0], REAL)
    assert "spectool check" in script
    assert "did you mean 'tune'?" in said


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_build_job_builds_and_reports(spectool, repository, run, tmp_path, system):
    spectool("init", "--ci", system, "r.yaml")
    job = jobs(system)[1]
    assert run(*job, REAL) is None
    report = Path("reports/r.yaml.xml").read_text(encoding="utf-8")
    assert 'tests="3" failures="0"' in report
    assert any(Path(".spectool-built").iterdir())


@pytest.mark.parametrize("system", SYSTEMS)
def test_nothing_is_written_over_and_nothing_by_halves(spectool, repository, system):
    *_, last = SYSTEMS[system]
    Path(last).parent.mkdir(parents=True, exist_ok=True)
    Path(last).write_text("mine", encoding="utf-8")
    before = sorted(path for path in repository.rglob("*") if path.is_file())
    ran = spectool("init", "--ci", system, "r.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert f"{last}: exists already" in ran.err
    assert sorted(path for path in repository.rglob("*") if path.is_file()) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ci", "gitub", "r.yaml"], "unknown CI system 'gitub'; did you mean 'github'?"),
        (["--ci", "github", "nope.yaml"], "no such file"),
        (["--ci", "github", "../outside.yaml"], "a pipeline would not have it"),
        (["--ci", "github", "r.yaml", "--runner", "${{ x }}"], "'${{ x }}': a pipeline takes"),
        (["--ci", "github", "two words.yaml"], "'two words.yaml': a pipeline takes"),
        (["--runner", "gpu"], "--runner: for a pipeline"),
        (["a.yaml", "b.yaml"], "one recipe at a time"),
    ],
)
def test_what_cannot_be_written_is_said(spectool, repository, words, says):
    ran = spectool("init", *words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert not Path(".github").exists()


def test_labels_choose_the_runner_and_the_backend_the_extra(spectool, repository):
    spectool("init", "--ci", "github", "r.yaml", "--runner", "h100", "--runner", "linux")
    workflow = read(".github/workflows/spectool.yml")
    assert workflow["jobs"]["build"]["runs-on"] == ["h100", "linux"]
    assert workflow["env"]["SPECTOOL"].startswith("spectool[cpu]==")
    path = repository / "r.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "backend: tensorrt\n", encoding="utf-8")
    spectool("init", "--ci", "gitlab", "r.yaml")
    assert read(".gitlab-ci.yml")["variables"]["SPECTOOL"].startswith("spectool==")
    assert read(".gitlab/spectool-build.yml")["build"]["tags"] == ["gpu"]


def test_a_plan_without_a_gpu_still_has_a_digest_that_follows_the_flags(
    spectool, repository, monkeypatch
):
    monkeypatch.setenv("PATH", os.devnull)  # no trtllm-build
    path = repository / "r.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "backend: tensorrt\n", encoding="utf-8")

    def digest(*changes):
        words = [word for change in changes for word in ("--set", change)]
        return spectool("plan", path, "--digest", *words).out

    before = digest()
    assert before == digest("name=other", "tensorrt.build_timeout_s=60")
    changes = [
        "engine.max_seq_len=128",
        "tensorrt.flags.gemm_plugin=float16",
        "tensorrt_llm=1.2.0",
        "tensorrt.gpu=h100",
        "target.dtype=float16",
    ]
    assert len({before, *map(digest, changes)}) == 6

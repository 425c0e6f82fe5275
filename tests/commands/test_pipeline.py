"""`spectool init --ci`: valid files whose scripts, run here, decide when a GPU is needed."""

import json
import os
import re
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
# Stands for spectool and says how it was called; "affected" is nothing, a tuning leaves a result.
RECORDER = f"""#!{sys.executable}
import json, os, pathlib, sys
argv = sys.argv[1:]
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(argv) + "\\n")
if "--changed-since" in argv and "--json" in argv:
    print(json.dumps({{"affected": []}}))
if argv[0] == "tune":
    pathlib.Path("results").mkdir(exist_ok=True)
    pathlib.Path("results/results.json").write_text(os.environ.get("TUNED", "first"))
    sys.exit(int(os.environ.get("REGRESSION", 0)))
"""
REAL = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m toolkit.cli "$@"\n'
# Real where recipes are compared; what the plan job does before has a test of its own.
REAL_BUILD = REAL.replace("\n", '\n[ "$1" = build ] || exit 0\n', 1)
# Stands for Python where a script installs something: it makes the environment, and it is there.
FAKE_PYTHON = f"""#!/bin/sh
if [ "$1" = - ]; then exec {sys.executable} "$@"; fi
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi
"""
SHARED = "s3://team/spectool"


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
    names = ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")
    files = {name: tmp_path / name for name in names}

    def go(job, variables, spectool=RECORDER, **more):
        install("spectool", spectool)
        files["GITHUB_OUTPUT"].unlink(missing_ok=True)
        environment = {
            **variables,
            **{name: str(path) for name, path in files.items()},
            "PATH": f"{programs}:/usr/bin:/bin",
            "CALLS": str(calls),
            "RUNNER_TEMP": str(tmp_path),
            "RECIPE": "r.yaml",
            "TUNE": "true",
            "SPECTOOL_OFFLINE": "1",
            **more,
        }
        if spectool != RECORDER:
            environment["SPECTOOL_STORE"] = str(tmp_path / "store")
        for script in scripts(job, tune=environment["TUNE"] == "true"):
            shell = ["bash", "-e", "-o", "pipefail", "-c", script]
            done = subprocess.run(shell, env=environment, capture_output=True, text=True)
            if done.returncode:
                return script, done.stderr
        return None

    go.outputs = lambda: dict(
        line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines()
    )
    go.calls = lambda: [json.loads(line) for line in calls.read_text().splitlines()]
    go.summary = files["GITHUB_STEP_SUMMARY"]
    return go


def git(*words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


def scripts(job, *, tune):
    """Each GitHub step has a shell of its own, all lines of a GitLab job share one."""
    if "steps" in job:
        steps = [step for step in job["steps"] if tune or step.get("if") != "matrix.tune"]
        return [step["run"] for step in steps if "run" in step]
    return ["\n".join([*job.get("before_script", ()), *job["script"]])]


def read(name):
    return yaml.safe_load(Path(name).read_text(encoding="utf-8"))


def jobs(system):
    """Name -> (job, variables) of every job that has a script."""
    documents = [read(name) for name in SYSTEMS[system]]
    variables = documents[0]["env" if system == "github" else "variables"]
    found = {}
    for document in documents:
        part = document.get("jobs", document)
        for name, job in part.items():
            if isinstance(job, dict) and {"steps", "script"} & job.keys():
                found[name.lstrip(".")] = ({**part.get(job.get("extends"), {}), **job}, variables)
    return found


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_files_are_valid_by_the_systems_own_schema(spectool, repository, system):
    ran = spectool("init", "--ci", system, "r.yaml", "recipes/other.yaml")
    assert (ran.code, ran.err) == (0, "")
    for name in SYSTEMS[system]:
        assert f"{name} written" in ran.out
        assert invalid(system, name) == ""
        assert not re.search(r"<<\w", Path(name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("system", "good", "bad"),
    [("github", "runs-on:", "run-on:"), ("gitlab", "strategy: depend", "strategy: sometimes")],
)
def test_the_schema_would_find_a_mistake(spectool, repository, system, good, bad):
    spectool("init", "--ci", system, "r.yaml")
    path = Path(next(iter(SYSTEMS[system])))
    path.write_text(path.read_text(encoding="utf-8").replace(good, bad, 1), encoding="utf-8")
    assert "Schema validation errors" in invalid(system, path)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_command_line_is_one_of_ours(spectool, repository, run, system):
    spectool("init", "--ci", system, "r.yaml", "recipes/other.yaml", "--store", SHARED)
    for name, (job, variables) in jobs(system).items():
        for action in ("promote", "rollback") if name == "move" else ("",):
            more = {"ACTION": action, "SERVICE": "tiny", "CHANNEL": "production"}
            assert run(job, variables, **more) is None
    calls = run.calls()
    for recipe in ("r.yaml", "recipes/other.yaml"):
        assert ["check", recipe] in calls
        assert ["plan", recipe, "--json"] in calls
    assert ["tune", "r.yaml", "--out", "results"] in calls
    assert ["store", "promote", "repository", "--to", "staging"] in calls
    assert ["store", "promote", "tiny", "--from", "staging", "--to", "production"] in calls
    assert ["store", "rollback", "tiny", "--in", "production"] in calls
    group = typer.main.get_command(cli.app)
    for argv in calls:
        name, command, rest = group.resolve_command(
            group.make_context("spectool", argv[:]), argv[:]
        )
        if subcommands := getattr(command, "commands", None):
            command, rest = subcommands[rest[0]], rest[1:]
        command.make_context(name, rest)


def affected(system, run, since="HEAD", source="push"):
    """Recipe -> labels of its runner, as the plan job, run for real, hands them on."""
    before = {"SINCE": since, "CI_COMMIT_BEFORE_SHA": since, "CI_PIPELINE_SOURCE": source}
    assert run(*jobs(system)["plan"], REAL_BUILD, **before) is None
    if system == "github":
        found = json.loads(run.outputs()["recipes"])
        return {job["recipe"]: job["labels"] for job in found}
    assert invalid("gitlab", "spectool-pipeline.yml") == ""
    found = [job for name, job in read("spectool-pipeline.yml").items() if name[0] != "."]
    return {job["variables"]["RECIPE"]: job["tags"] for job in found if "extends" in job}


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_is_built_is_what_would_have_other_bytes_on_a_runner_with_its_gpu(
    spectool, repository, run, system
):
    spectool("init", "--ci", system, "r.yaml", "recipes/other.yaml", "--runner", "farm")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    path = repository / "r.yaml"
    text = path.read_text(encoding="utf-8").replace("name: tiny", "name: other")
    gpu = text.replace("max_seq_len: 64", "max_seq_len: 128") + "tensorrt: {gpu: H100}\n"
    path.write_text(gpu, encoding="utf-8")
    assert affected(system, run) == {"r.yaml": ["farm", "h100"]}
    if system == "github":
        assert "- r.yaml: would build something else than at" in run.summary.read_text()
    both = {"r.yaml": ["farm", "h100"], "recipes/other.yaml": ["farm"]}
    assert affected(system, run, "1" * 40) == both  # gone after a forced push


def test_a_gitlab_schedule_tunes_and_a_push_builds(spectool, repository, run):
    spectool("init", "--ci", "gitlab", "r.yaml")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    assert affected("gitlab", run, source="schedule") == {"r.yaml": ["gpu"]}
    child = read("spectool-pipeline.yml")
    assert child["nightly 1"]["extends"] == ".nightly"
    affected("gitlab", run)
    assert set(read("spectool-pipeline.yml")) == {"unchanged"}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_night_is_compared_with_the_last_good_one(spectool, repository, run, system):
    spectool("init", "--ci", system, "r.yaml", "--store", SHARED)
    night = jobs(system)["nightly"]
    tuned = ["tune", "r.yaml", "--out", "results"]
    promoted = ["store", "promote", "repository", "--to", "staging"]

    assert run(*night, TUNED="first") is None
    assert [call for call in run.calls() if call[0] == "tune"] == [tuned]
    assert run.calls()[-1] == promoted
    script, _ = run(*night, TUNED="worse", REGRESSION="1")
    assert "spectool tune" in script
    assert run.calls()[-1] == [*tuned, "--compare", "last/results.json"]
    assert Path("last/results.json").read_text() == "first"
    assert run(*night, TUNED="second") is None
    assert Path("last/results.json").read_text() == "second"


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_has_no_draft_length_to_tune_is_promoted_as_it_is(spectool, repository, run, system):
    spectool("init", "--ci", system, "r.yaml", "--store", SHARED)
    assert run(*jobs(system)["nightly"], TUNE="false") is None
    assert not any(call[0] == "tune" for call in run.calls())
    assert run.calls()[-2:] == [
        ["repo", "r.yaml", "-o", "repository"],
        ["store", "promote", "repository", "--to", "staging"],
    ]
    assert not Path("last/results.json").exists()


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_plan_says_what_is_not_tuned(spectool, repository, run, system):
    spectool("init", "--ci", system, "r.yaml", "recipes/other.yaml")
    path = repository / "r.yaml"
    deployment = "backend: pytorch\ntensorrt_llm: 1.2.1\n"
    path.write_text(path.read_text(encoding="utf-8") + deployment, encoding="utf-8")
    before = {"SINCE": "0" * 40, "CI_COMMIT_BEFORE_SHA": "0" * 40}
    job, variables = jobs(system)["plan"]
    assert run(job, variables, REAL_BUILD, CI_PIPELINE_SOURCE="schedule", **before) is None
    if system == "github":
        found = {job["recipe"]: job["tune"] for job in json.loads(run.outputs()["recipes"])}
        said = "- r.yaml: no earlier revision (not tuned at night: backend 'pytorch': a deployment"
        assert said in run.summary.read_text()
    else:
        night = [
            job["variables"]
            for name, job in read("spectool-pipeline.yml").items()
            if name.startswith("nightly")
        ]
        found = {each["RECIPE"]: each["TUNE"] == "true" for each in night}
    assert found == {"r.yaml": False, "recipes/other.yaml": True}


@pytest.mark.parametrize("system", SYSTEMS)
def test_without_a_shared_store_nothing_is_promoted(spectool, repository, run, system):
    spectool("init", "--ci", system, "r.yaml")
    assert run(*jobs(system)["nightly"]) is None
    assert not any(call[0] == "store" for call in run.calls())


def test_pull_requests_get_no_credentials_and_no_gpu(spectool, repository):
    spectool("init", "--ci", "github", "r.yaml", "--store", SHARED)
    found = read(".github/workflows/spectool.yml")["jobs"]
    assert found["plan"]["env"]["SPECTOOL_STORE"] == ""
    assert not any(name.startswith("AWS") for name in found["plan"]["env"])
    for name in ("build", "nightly", "move"):
        assert "pull_request" not in found[name]["if"]
        assert "github.event_name ==" in found[name]["if"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_recipe_with_a_problem_fails_the_plan_job(spectool, repository, run, system):
    spectool("init", "--ci", system, "r.yaml", "recipes/other.yaml")
    path = repository / "r.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "tunee: {}\n", encoding="utf-8")
    script, said = run(*jobs(system)["plan"], REAL)
    assert "spectool check" in script
    assert "did you mean 'tune'?" in said


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_build_job_builds_and_reports(spectool, repository, run, tmp_path, system):
    spectool("init", "--ci", system, "r.yaml")
    assert run(*jobs(system)["build"], REAL) is None
    report = Path("reports/build.xml").read_text(encoding="utf-8")
    assert 'tests="3" failures="0"' in report
    summary = run.summary if system == "github" else Path("reports/build.md")
    assert summary.read_text(encoding="utf-8").count("| built in ") == 3


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
        (["--ci", "github", "r.yaml", "--store", "s3://team/${{ x }}"], "a pipeline takes"),
        (["--ci", "github", "r.yaml", "--store", "/mnt/x"], "unknown store protocol"),
        (["--runner", "gpu"], "--runner: for a pipeline"),
        (["--store", "s3://team/x"], "--store: for a pipeline"),
        (["a.yaml", "b.yaml"], "one recipe at a time"),
    ],
)
def test_what_cannot_be_written_is_said(spectool, repository, words, says):
    ran = spectool("init", *words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert not Path(".github").exists()


def test_labels_choose_the_runner_and_backend_and_store_the_extras(spectool, repository):
    labels = ("--runner", "h100", "--runner", "linux")
    spectool("init", "--ci", "github", "r.yaml", *labels, "--store", "gs://team/x")
    workflow = read(".github/workflows/spectool.yml")
    assert json.loads(workflow["env"]["RUNNER"]) == ["h100", "linux"]
    assert workflow["env"]["SPECTOOL"].startswith("spectool[cpu,gs]==")
    assert workflow["env"]["SPECTOOL_STORE"] == "gs://team/x"
    path = repository / "r.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "backend: tensorrt\n", encoding="utf-8")
    spectool("init", "--ci", "gitlab", "r.yaml")
    variables = read(".gitlab-ci.yml")["variables"]
    assert variables["SPECTOOL"].startswith("spectool==")
    assert (json.loads(variables["RUNNER"]), variables["SPECTOOL_STORE"]) == (["gpu"], "")


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

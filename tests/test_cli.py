"""How the program starts, and how errors leave it."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from toolkit.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]


def python(*argv, **options):
    return subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, cwd=ROOT, **options
    )


def run_failing_with(statement):
    """`spectool recipes` whose work is replaced by one statement."""
    code = f"""
        import toolkit.recipe.load as load
        from toolkit import errors
        from toolkit.cli import main

        def fail():
            {statement}

        load.bundled_recipes = fail
        main(["recipes"])
    """
    return python("-c", textwrap.dedent(code))


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("raise errors.RunError('a run failed')", 1),
        ("raise errors.InputError('bad input')", 2),
        ("raise errors.MissingDependencyError('nothing there')", 3),
    ],
)
def test_an_error_for_people_is_its_message_and_its_code(statement, code):
    done = run_failing_with(statement)
    message = statement.split("'")[1]
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"spectool: {message}\n")


def test_a_bug_keeps_its_traceback():
    done = run_failing_with("raise KeyError('oops')")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.endswith("KeyError: 'oops'\n")


def test_an_interrupt_is_one_line_and_130():
    done = run_failing_with("raise KeyboardInterrupt")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "spectool: interrupted\n")


def test_ctrl_c_ends_a_running_command():
    code = """
        import time
        import toolkit.recipe.load as load
        from toolkit.cli import main

        def wait():
            print("waiting", flush=True)
            time.sleep(60)

        load.bundled_recipes = wait
        main(["recipes"])
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "spectool: interrupted\n")


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen(
        [sys.executable, "-m", "toolkit.cli", "schema"],
        stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    os.close(write)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (1, "")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["biuld"], "No such command 'biuld'. Did you mean 'build'?"),
        (["build"], "Missing argument"),
        (["build", "r.yaml", "--nonsense"], "No such option"),
        (["build", "r.yaml", "--jobs", "none"], "Invalid value for '--jobs'"),
        (["store", "remove"], "No such command 'remove'"),
    ],
)
def test_usage_errors_are_2_and_say_what_was_wrong(argv, says):
    done = python("-m", "toolkit.cli", *argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name):
    done = python("-m", "toolkit.cli", name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: spectool")


def test_help_names_every_command_and_needs_no_heavy_package():
    code = """
        import sys
        from toolkit.cli import main

        try:
            main(["--help"])
        except SystemExit:
            pass
        heavy = {"numpy", "pydantic", "yaml", "openvino", "rich", "tokenizers", "torch", "gguf"}
        print("loaded:", sorted(heavy & set(sys.modules)))
    """
    done = python("-c", textwrap.dedent(code))
    assert "loaded: []" in done.stdout
    listed = [line.split()[0] for line in done.stdout.partition("Commands:\n")[2].splitlines()]
    assert listed[: len(COMMANDS)] == list(COMMANDS)


def test_help_is_fast():
    def processor_seconds():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        python("-m", "toolkit.cli", "--help", check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Processor time, best of several: what else this machine does is not measured here.
    assert min(processor_seconds() for _ in range(5)) < 0.2


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("spectool tu", "tune"), ("spectool check smollm2/135m_n", "smollm2/135m_ngram")],
)
def test_tab_completes_commands_and_recipes(typed, offered, monkeypatch, capsys):
    monkeypatch.setenv("_SPECTOOL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    with pytest.raises(SystemExit) as done:
        main([])
    assert done.value.code == 0
    assert capsys.readouterr().out.split() == [offered]

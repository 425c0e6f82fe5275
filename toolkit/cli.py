"""The command line: which verbs there are, and how an error leaves the program.

Keep imports here to what every call needs: `spectool --help` reads this file each time.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from toolkit import __version__
from toolkit.errors import SpectoolError

# In the order of the work; `toolkit.commands.<name>` loads when its command is asked for.
COMMANDS = {
    "recipes": "List the bundled recipes, or copy one.",
    "init": "Write a commented recipe to start from, or a CI pipeline.",
    "schema": "Print the JSON Schema of recipes.",
    "check": "Find every problem before a build, with the fix.",
    "plan": "Show what a build would make, with digests.",
    "convert": "Convert a checkpoint to TensorRT-LLM's layout.",
    "build": "Convert weights and build engines; only what is missing.",
    "generate": "Answer one prompt, streamed, with its statistics.",
    "verify": "Compare text with and without speculation.",
    "train-head": "Train Medusa or EAGLE heads on the target's own outputs.",
    "distill": "Train a small draft from the target's layers.",
    "tune": "Find the draft length that pays, per batch and domain.",
    "select": "Rank drafts for a target by predicted TPOT.",
    "search-layers": "Find the layers of a target that draft for it.",
    "repo": "Write the Triton model repository.",
    "lint": "Check a model repository without starting it.",
    "migrate": "Take a recipe to another backend or release.",
    "export": "Say the same decision to another server.",
    "serve": "Run a real Triton server on a repository.",
    "deploy": "Write docker, Kubernetes and monitoring files.",
    "bench": "Put load on a server: TTFT, TPOT, acceptance.",
    "store": "List, verify and prune what was built.",
    "doctor": "Say what is installed and what can work here.",
}
INTERRUPTED = 130


class Commands(TyperGroup):
    """The table above as a command group."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = dict.fromkeys(COMMANDS)  # the names, for "did you mean"

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """From the table alone: `--help` need not load fifteen modules."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or the group of commands where its module has an `app`."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"toolkit.commands.{cmd_name.replace('-', '_')}")
        if (found := getattr(module, "app", None)) is None:
            found = typer.Typer(add_completion=False, rich_markup_mode=None)
            found.command(cmd_name)(getattr(module, cmd_name.replace("-", "_")))
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spectool {__version__}")
        raise typer.Exit


@app.callback()
def spectool(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Make speculative decoding pay off: one recipe from a checkpoint to a tuned, served model."""


def main(argv: list[str] | None = None) -> None:
    """Entry point of `spectool`: the one place where an error becomes a message and a code."""
    try:
        try:
            typer.main.get_command(app)(argv, prog_name="spectool")
        finally:
            sys.stdout.flush()
    except SpectoolError as error:
        typer.echo(f"spectool: {error}", err=True)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:  # whoever read our output has left; nothing to tell anybody
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except SystemExit as done:
        if done.code == INTERRUPTED:
            typer.echo("spectool: interrupted", err=True)
        raise


if __name__ == "__main__":
    main()

"""launch.sh, which starts Triton on the repository that it lies in. Every word is quoted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

REPOSITORY, HOST = "$repository", "$host"  # the script's variables
SCRIPT = "launch.sh"

_HEAD = """\
#!/bin/sh
# Starts Triton with these engines: {what}.
# SPECTOOL_HOST replaces the address that it listens on.
set -eu
host=${{SPECTOOL_HOST:-{host}}}
repository=$(cd "$(dirname "$0")" && pwd)
case "$repository" in
*[!A-Za-z0-9_./+-]*)
    echo "$repository: Triton starts Python models through a shell without quotes; move the" \\
        "repository to a path of letters, digits and ._/+- only" >&2
    exit 2
    ;;
esac
"""


def script(what: str, environment: Mapping[str, str], command: Sequence[str], *, host: str) -> str:
    """The script's text; `command` may hold REPOSITORY or HOST at the end of a word."""
    text = _HEAD.format(what=what, host=shlex.quote(host))
    text += "".join(f"export {name}={value}\n" for name, value in environment.items())
    return text + "exec " + _lines(command) + "\n"


def _lines(words: Sequence[str]) -> str:
    """One option a line."""
    text = words[0]
    for word in words[1:]:
        text += (" \\\n    " if word.startswith("-") else " ") + _quoted(word)
    return text


def _quoted(word: str) -> str:
    for variable in (REPOSITORY, HOST):
        if word.endswith(variable):
            return f'{shlex.quote(word.removesuffix(variable))}"{variable}"'
    return shlex.quote(word)

"""launch.sh, which starts Triton on the repository that it lies in. Every word is quoted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

REPOSITORY = "$repository"  # the script's variable
SCRIPT = "launch.sh"

_HEAD = """\
#!/bin/sh
# Starts Triton with these engines: {what}.
set -eu
repository=$(cd "$(dirname "$0")" && pwd)
case "$repository" in
*[!A-Za-z0-9_./+-]*)
    echo "$repository: Triton starts Python models through a shell without quotes; move the" \\
        "repository to a path of letters, digits and ._/+- only" >&2
    exit 2
    ;;
esac
"""


def script(what: str, environment: Mapping[str, str], command: Sequence[str]) -> str:
    """The script's text; `command` may hold REPOSITORY at the end of a word."""
    text = _HEAD.format(what=what)
    text += "".join(f"export {name}={value}\n" for name, value in environment.items())
    return text + "exec " + _lines(command) + "\n"


def _lines(words: Sequence[str]) -> str:
    """One option a line."""
    text = words[0]
    for word in words[1:]:
        text += (" \\\n    " if word.startswith("-") else " ") + _quoted(word)
    return text


def _quoted(word: str) -> str:
    if REPOSITORY in word:
        name, _, _ = word.partition(REPOSITORY)
        return f'{shlex.quote(name)}"{REPOSITORY}"'
    return shlex.quote(word)

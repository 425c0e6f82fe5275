"""The command line: which verbs there are, and how an error leaves the program."""

from __future__ import annotations


def main() -> None:
    """Entry point of `spectool`."""

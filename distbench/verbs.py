"""What distbench does besides measuring: one table of verbs. Each is imported when used, none needs torch."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Verb:
    """`distbench NAME …`."""

    target: str
    """module:function; the function takes the words after the verb and returns the exit status."""
    line: str
    options: tuple[str, ...] = ()
    """What the Tab key offers after it, besides files."""


_HELP = ("--help",)
VERBS = {
    "report": Verb(
        "distbench.show.report.main:main",
        "a run as a page (HTML), or --format md, csv, terminal",
        ("--format", "--follow", "--title", "-o", *_HELP),
    ),
    "compare": Verb(
        "distbench.show.compare.main:main",
        "is NEW slower than BASE? exit status 1 if so",
        ("--threshold", "--metric", "--allow", "--force", "--format", *_HELP),
    ),
    "export": Verb(
        "distbench.show.export:main",
        "samples and cells as csv, parquet, jsonl, openmetrics",
        ("--format", "--table", "-o", *_HELP),
    ),
    "list": Verb("distbench.show.listing:main", "workloads and experiments, one line each", _HELP),
    "doctor": Verb("distbench.doctor:main", "what will make numbers wrong or slow on this machine", ("--json", *_HELP)),
}


def is_verb(arguments: list[str]) -> bool:
    return bool(arguments) and arguments[0] in VERBS


def run_verb(arguments: list[str]) -> int:
    """Carry out `arguments`, whose first word is a verb; returns the exit status."""
    module, _, function = VERBS[arguments[0]].target.partition(":")
    try:
        status = getattr(import_module(module), function)(arguments[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `distbench report … | head`
        sys.stderr.close()  # else the interpreter's own flush complains
        return 1
    assert isinstance(status, int)
    return status


def unknown_word(arguments: list[str]) -> str | None:
    """The line for a first word that is neither a verb nor a setting nor an option; None where it is one of these."""
    word = arguments[0] if arguments else ""
    if not word or word.startswith(("-", "+", "~")) or "=" in word or word.startswith("hydra"):
        return None
    close = difflib.get_close_matches(word, VERBS, n=1)
    hint = f"did you mean distbench {close[0]}? " if close else ""
    return f"{word}: no such verb; {hint}the verbs are {', '.join(VERBS)}; settings are written key=value"

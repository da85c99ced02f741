"""distbench list: the workloads, experiments and ways of measuring, one line each."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from pathlib import Path

_GROUPS = (
    ("workload", "workload={}", "Workloads"),
    ("experiment", "+experiment={}", "Experiments"),
    ("measure", "measure={}", "Ways of measuring"),
)


def main(arguments: list[str]) -> int:
    """Print them; exit status 0."""
    from distbench.compose import conf_dir

    argparse.ArgumentParser(prog="distbench list", description=__doc__).parse_args(arguments)
    groups = [(title, rows_of(conf_dir(), group, form)) for group, form, title in _GROUPS]
    left = max(len(word) for _, rows in groups for word, _ in rows) + 4
    width = min(shutil.get_terminal_size().columns, 120)
    for number, (title, rows) in enumerate(groups):
        print(f"{chr(10) * (number > 0)}{title}")
        for word, told in rows:
            lines = textwrap.wrap(told, width - left, break_on_hyphens=False) or [""]
            print(f"  {word}".ljust(left) + lines[0])
            print("".join(f"{'':{left}}{line}\n" for line in lines[1:]), end="")
    return 0


def rows_of(conf: Path, group: str, form: str) -> list[tuple[str, str]]:
    """(what to write on the command line, the first sentence of the file's comment) for each file of a group."""
    files = sorted((conf / group).glob("*.yaml"))
    return [(form.format(path.stem), first_sentence(path.read_text("utf-8"))) for path in files]


def first_sentence(text: str) -> str:
    """Of the comment at the head of a file, less Hydra's own `# @package`."""
    words = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @"):
            words.append(line.lstrip("# "))
    return " ".join(words).partition(". ")[0].rstrip(".")

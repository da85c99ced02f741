"""Tab completion: Hydra's own, with distbench's verbs added.

eval "$(distbench -sc install=bash)"
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from distbench.verbs import VERBS


def main(arguments: list[str]) -> int:
    """Answer `-sc install=…`, `-sc uninstall=…` and `-sc query=…` (which Hydra's script asks with COMP_LINE set)."""
    if any(word.startswith("query=") for word in arguments):
        offered, is_verbs_own = offers(os.environ)
        if offered:
            print(" ".join(offered))
        if is_verbs_own:
            return 0
    from distbench.compose import run_hydra

    run_hydra(lambda composed: None, arguments)
    return 0


def offers(environment: Mapping[str, str]) -> tuple[list[str], bool]:
    """The words to offer for the command line in COMP_LINE, and whether they are all (it is a verb's)."""
    line = environment.get("COMP_LINE", "")
    words = line[: int(environment.get("COMP_POINT") or len(line))].split()[1:]
    is_new = line[-1:].isspace()  # the word under the cursor has not begun
    if words and words[0] in VERBS and (is_new or len(words) > 1):
        return _starting(VERBS[words[0]].options, "" if is_new else words[-1]), True
    if not words or (len(words) == 1 and not is_new):
        return _starting(tuple(VERBS), "".join(words)), False
    return [], False


def _starting(names: tuple[str, ...], text: str) -> list[str]:
    """Those that begin with the text; options only where one has been begun, so that files are offered else."""
    return [name for name in names if name.startswith(text) and (text or not name.startswith("-"))]

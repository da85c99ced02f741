"""Slurm's notations, read without scontrol: node lists such as `gpu-[01-03,7],login` and counts such as `4(x2),3`."""

from __future__ import annotations

import re
from itertools import product

_MAX = 100_000


def nodes(text: str) -> list[str]:
    """The names in a node list, in its order. Raises ValueError for what is none.

    A name may hold several brackets; numbers keep their padding: `r[1-2]n[08-10]` is r1n08, r1n09, r1n10, r2n08, …
    """
    found: list[str] = []
    for item in _split(text):
        parts = re.split(r"\[([^\[\]]*)\]", item)  # what lies between brackets and in them, by turns
        choices = [[part] if index % 2 == 0 else _range(part, text) for index, part in enumerate(parts)]
        count = 1
        for choice in choices:
            count *= len(choice)
        if any(letter in "[]" for part in parts for letter in part) or count + len(found) > _MAX:
            raise _wrong(text)
        found += ["".join(pick) for pick in product(*choices)]
    if not found or not all(found):
        raise _wrong(text)
    return found


def counts(text: str) -> list[int]:
    """Tasks of each node: `4(x2),3` is 4, 4, 3. Raises ValueError for what is none."""
    found: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:\(x([0-9]{1,6})\))?", item.strip())
        if match is None or int(match[2] or 1) + len(found) > _MAX:
            raise ValueError(f"{text}: must be tasks per node as Slurm writes them, such as 4(x2),3")
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    return re.split(r",(?![^\[\]]*\])", text.strip())


def _range(text: str, whole: str) -> list[str]:
    names: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None:
            raise _wrong(whole)
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < _MAX:
            raise _wrong(whole)
        names += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return names


def _wrong(text: str) -> ValueError:
    return ValueError(f"{text}: must be a node list as Slurm writes it, such as n[01-04,7] or a,b")

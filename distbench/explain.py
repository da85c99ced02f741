"""Composition errors in one line each: the key, the value, what is allowed, the nearest name.

Hydra and OmegaConf say these things over several lines and several chained exceptions; the patterns below are theirs
(hydra-core 1.3, omegaconf 2.3), and a test holds each against the real library.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from hydra.errors import OverrideParseException

from distbench import config
from distbench.config import ConfigError, keys_of

_EXPECTED = {
    "Integer": "a whole number",
    "Float": "a number",
    "bool": "true or false",
    "string": "a word",
    "Union[int, float]": "a whole number, 1 or more",
    "Union[int, str]": "auto, or a whole number, 1 or more",
}


def explain(error: BaseException) -> str:
    """One line for a person, from any error that composing or checking raises."""
    return " ".join(_explained(error).split())  # a word of the command line may hold line breaks itself


def _explained(error: BaseException) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override}: cannot be read; write key=value, with quotes round a value that holds = , or brackets"
        )
    texts = [text for text in _chain(error) if "$VALUE" not in text]  # OmegaConf's unfilled templates say nothing
    override = next((found[1] for text in texts if (found := re.search(r"Error merging override (.*)", text))), "")
    key = next(
        (found[1] for text in texts if (found := re.search(r"full_key: (\S+)", text))), override.partition("=")[0]
    )
    for text in reversed(texts):  # the innermost says what is wrong
        for pattern, say in _PATTERNS:
            if found := re.search(pattern, text, re.DOTALL):
                return say(found, key)
    line = " ".join((texts or [str(error)])[-1 if override else 0].split(" full_key:")[0].split())
    named = override or key
    return f"{named}: {line}" if named and named not in line else line


def unknown_key(key: str) -> str:
    """The line for a key that nothing reads."""
    key = " ".join(key.split()) or "a key of blanks"
    group, _, name = key.lstrip("+~").rpartition(".")
    while group and not keys_of(group):  # below a key that is no group: it, among the keys beside it
        group, _, name = group.rpartition(".")
    options = keys_of(group)
    where = f" of {group}" if group else ""
    return f"{key}: no such key; {_nearest(name, options)}the keys{where} are {', '.join(options)}"


def _chain(error: BaseException) -> list[str]:
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    return texts


def _nearest(word: str, options: list[str]) -> str:
    word = {"gpu": "cuda"}.get(word, word)
    close = difflib.get_close_matches(word, options, n=1)
    return f"did you mean {close[0]}? " if close else ""


def _one_of(key: str, value: str, options: list[str]) -> str:
    return f"{key}={value}: {_nearest(value, options)}one of {', '.join(options)}"


def _no_group(found: re.Match[str], key: str) -> str:
    return f"{found[1]}: set a new group with a plus sign, as in {found[2] or f'+{found[1]}=…'}"


_PATTERNS: tuple[tuple[str, Callable[[re.Match[str], str], str]], ...] = (
    (r"Key '([^']+)' (?:is )?not in '\w+'", lambda found, key: unknown_key(key or found[1])),
    (
        r"Invalid value '([^']*)', expected one of \[([^\]]*)\]",
        lambda found, key: _one_of(key, found[1], found[2].split(", ")),
    ),
    (
        r"Value '(.*)' of type '\w+' is incompatible with type hint '([^']+)'",
        lambda found, key: f"{key}={found[1]}: must be {_EXPECTED.get(found[2], found[2])}",
    ),
    (
        r"Value '(.*)' of type '\w+' could not be converted to (\w+)",
        lambda found, key: f"{key}={found[1]}: must be {_EXPECTED.get(found[2], found[2])}",
    ),
    (
        r"Value '(.*)' is not a valid (\w+)",
        lambda found, key: f"{key}={found[1]}: must be {_EXPECTED.get(found[2], found[2])}",
    ),
    (
        r"Invalid type assigned: \w+ is not a subclass of \w+\. value: ([^\n]*)",
        lambda found, key: f"{key}={found[1]}: a group; its keys are {', '.join(keys_of(key))}",
    ),
    (r"field '([^']+)' is not Optional", lambda found, key: f"{found[1]}=null: must have a value"),
    (r"Cannot convert '\w+' to string: '(.*?)'\n", lambda found, key: f"{key}={found[1]}: must be a word"),
    (
        r"Could not find '([^']+)/([^'/]+)'\s+Available options in '[^']+':\s+(.*?)\s*Config search path",
        lambda found, key: _one_of(found[1], found[2], found[3].split()),
    ),
    (r"Interpolation key '([^']+)' not found", lambda found, key: f"{key}: refers to {found[1]}, which does not exist"),
    (r"Could not override '([^']+)'\. No match in the defaults list(?:.*use (\+\S+))?", _no_group),
    (r"Could not override '([^']+)'", lambda found, key: unknown_key(found[1])),
    (
        r"Config group override must be a string",
        lambda found, key: "a group (workload, measure) is chosen by the name of one of its files",
    ),
    (
        r"Value (.*) \(\w+\) is not a valid input for <enum '(\w+)'>",
        lambda found, key: _one_of(key, found[1], [str(option) for option in getattr(config, found[2])]),
    ),
    (
        r"Invalid value assigned: \w+ is not a ListConfig",
        lambda found, key: f"{key}: must be a list, as in {key}=[0,1]",
    ),
    (r"Cannot merge DictConfig with ListConfig", lambda found, key: f"{key}: must be a list, as in {key}=[0,1]"),
)

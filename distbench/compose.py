"""The door: Hydra composes, plain dataclasses come out. Rank 0 alone comes through here."""

from __future__ import annotations

import difflib
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from distbench.config import Config, ConfigError, as_dict, check, from_dict, keys_of

Task = Callable[[DictConfig], Any]


class Refused(Exception):
    """The command line asks for what cannot be composed or done. The message is one line for a person."""


def conf_dir() -> Path:
    """Where the configuration lies: inside the wheel, else beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise Refused(f"no configuration found in {package / 'conf'} or {package.parent / 'conf'}: reinstall distbench")


def compose_single(arguments: list[str]) -> Config | None:
    """The one cell that a command line without --multirun describes, checked, before anything is started.

    None where Hydra has something else to do (a sweep, --cfg, --info, …). Raises Refused.
    """
    options = _parse(arguments)
    if options.multirun or options.cfg or options.info or options.hydra_help or options.shell_completion:
        return None
    if options.config_dir or options.config_path or options.config_name:
        return None
    _register()
    try:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            composed = hydra.compose("config", overrides=options.overrides)
        return to_config(composed)
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        raise Refused(explain(error)) from None
    finally:
        GlobalHydra.instance().clear()


def is_multirun(arguments: list[str]) -> bool:
    return bool(_parse(arguments).multirun)


def run_hydra(task: Task, arguments: list[str]) -> None:
    """Run Hydra's own main: `task` is called for each cell. Raises Refused for what cannot be composed."""
    _register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us as exceptions instead of Hydra's print and exit
    sys.argv[1:] = arguments
    main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    try:
        main(task)()
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        raise Refused(explain(error)) from None
    except OSError as error:
        raise Refused(
            f"cannot write the results: {error}; choose a folder with hydra.run.dir=… or run elsewhere"
        ) from None


def to_config(composed: DictConfig) -> Config:
    """The composed cell as plain dataclasses, unchecked ranges and all. Raises OmegaConf's errors."""
    values = OmegaConf.to_container(composed, resolve=True, enum_to_str=True, throw_on_missing=True)
    assert isinstance(values, dict)
    values.pop("hydra", None)
    config = from_dict({str(key): value for key, value in values.items()})
    check(config)
    return config


def raw_config(composed: DictConfig) -> dict[str, Any]:
    """A cell's configuration for the record of a cell that was refused."""
    values = OmegaConf.to_container(composed, resolve=False, enum_to_str=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key != "hydra"}


def results_folder() -> Path:
    """Where this launch's results.jsonl lies; known inside a task."""
    now = HydraConfig.get()
    return Path(now.sweep.dir if now.mode == RunMode.MULTIRUN else now.runtime.output_dir)


def job_label() -> str:
    """What distinguishes this cell in its sweep: its overrides."""
    return " ".join(str(override) for override in HydraConfig.get().overrides.task)


def explain(error: BaseException) -> str:
    """One line: the key, the value, what is allowed."""
    if isinstance(error, ConfigError):
        return str(error)
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    for link in reversed(chain):  # the innermost says what is wrong
        text = _explained(link, " ".join(str(other) for other in chain))
        if text:
            return text
    return " ".join(str(error).split())


def _explained(error: BaseException, everything: str) -> str | None:
    text = str(error)
    key = (re.search(r"full_key: (\S+)", text) or [None, None])[1]
    if found := re.search(r"Key '([^']+)' (?:is )?not in '(\w+)'", text):
        return _unknown_key(key or found[1])
    if found := re.search(r"Invalid value '([^']*)', expected one of \[([^\]]*)\]", text):
        return f"{key}={found[1]}: {_nearest(found[1], found[2].split(', '))}one of {found[2]}"
    if found := re.search(r"Value '([^']*)'(?: of type '([^']+)')? could not be converted to (\w+)", text):
        return f"{key}={found[1]}: must be {_TYPES.get(found[3], found[3])}"
    if found := re.search(r"Value '([^']*)' of type '[^']+' is incompatible with type hint '([^']+)'", text):
        return f"{key}={found[1]}: must be a whole number, 1 or more"
    if found := re.search(r"Could not find '([^']+)/([^'/]+)'\s+Available options in '[^']+':\s+(.*)", text, re.DOTALL):
        options = found[3].split()
        return f"{found[1]}={found[2]}: {_nearest(found[2], options)}one of {', '.join(options)}"
    if found := re.search(r"Could not override '([^']+)'", text):
        if "No match in the defaults list" in text:
            return f"{found[1].split('@')[0]}: no such group; use {found[1]} as +{found[1]}=…"
        return None if "Key '" in everything or "full_key" in everything else _unknown_key(found[1])
    return None


_TYPES = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}


def _unknown_key(key: str) -> str:
    group, _, name = key.rpartition(".")
    options = keys_of(group)
    where = f" of {group}" if group else ""
    if not options:
        return f"{key}: no such key"
    return f"{key}: no such key; {_nearest(name, options)}the keys{where} are {', '.join(options)}"


def _nearest(word: str, options: list[str]) -> str:
    close = difflib.get_close_matches(word, options, n=1)
    return f"did you mean {close[0]}? " if close else ""


def _parse(arguments: list[str]) -> Any:
    from hydra._internal.utils import get_args_parser  # Hydra's own: the same words mean the same thing

    told = StringIO()
    try:
        with redirect_stderr(told):
            return get_args_parser().parse_args(arguments)
    except SystemExit:
        lines = told.getvalue().strip().splitlines() or ["unknown option"]
        raise Refused(f"{lines[-1].partition('error: ')[2] or lines[-1]} (see distbench --help)") from None


def _register() -> None:
    ConfigStore.instance().store(name="schema", node=Config)
    OmegaConf.register_new_resolver("new_folder", _new_folder, replace=True)


@cache
def _new_folder(parent: str) -> str:
    """A folder of this run's own under `parent`, named by the time and made exclusively, once per process."""
    day = Path(parent) / time.strftime("%Y-%m-%d")
    day.mkdir(parents=True, exist_ok=True)
    second = time.strftime("%H-%M-%S")
    number = 0
    while True:
        folder = day / (second if number == 0 else f"{second}-{number}")
        try:
            folder.mkdir()
            return str(folder)
        except FileExistsError:
            number += 1


__all__ = ["Refused", "as_dict", "compose_single", "explain", "raw_config", "run_hydra", "to_config"]

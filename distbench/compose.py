"""The door: Hydra composes, plain dataclasses come out. Rank 0 alone comes through here."""

from __future__ import annotations

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
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from distbench import resume
from distbench.config import Config, ConfigError, from_dict, keys_of
from distbench.explain import explain, unknown_key
from distbench.rules import check

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


def resumed_folder(arguments: list[str]) -> Path | None:
    """The folder of the run that run.resume=… of the command line names, if it does. Raises Refused."""
    words = [word for word in _parse(arguments).overrides if word.lstrip("+").startswith(f"{resume.KEY}=")]
    if not words:
        return None
    try:
        override = OverridesParser.create().parse_override(words[-1])
        value = None if override.is_sweep_override() else override.value()
    except HydraException as error:
        raise Refused(explain(error)) from None
    if not isinstance(value, str | QuotedString):
        raise Refused(f"{words[-1]}: must be the folder of one run")
    try:
        return resume.folder_of(value.text if isinstance(value, QuotedString) else value)
    except ValueError as error:
        raise Refused(str(error)) from None


def compose_single(arguments: list[str]) -> Config | None:
    """The one cell that a command line without --multirun describes, checked, before anything is started.

    None where Hydra has something else to do (a sweep, --cfg, --info, …). Raises Refused.
    """
    options = _parse(arguments)
    resumed_folder(arguments)
    if options.multirun or options.cfg or options.info or options.hydra_help or options.shell_completion:
        return None
    if options.config_dir or options.config_path or options.config_name:
        return None
    refuse_keys_below_values(options.overrides)
    _register()
    try:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            composed = hydra.compose("config", overrides=options.overrides)
        return to_config(composed)
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # Hydra raises bare ValueErrors too
        raise Refused(explain(error)) from None
    finally:
        GlobalHydra.instance().clear()


def is_multirun(arguments: list[str]) -> bool:
    return bool(_parse(arguments).multirun)


def refuse_keys_below_values(words: list[str]) -> None:
    """`devices.a=1`: a key below one that is no group, of which OmegaConf says nothing readable. Raises Refused."""
    for word in words:
        key = word.partition("=")[0].lstrip("+~")
        group = key.rpartition(".")[0]
        if group and not keys_of(group) and not key.startswith("hydra") and not {"/", "@"} & set(key):
            raise Refused(unknown_key(key))


def refuse_new_keys(arguments: list[str]) -> None:
    """`+key=value` lets in a key that nothing reads: said before the first cell of a sweep. Raises Refused."""
    refuse_keys_below_values(_parse(arguments).overrides)
    for word in _parse(arguments).overrides:
        key = word.partition("=")[0].lstrip("+").partition("@")[0]
        group, _, name = key.rpartition(".")
        known = key.startswith("hydra") or "/" in key or (conf_dir() / key).is_dir() or name in keys_of(group)
        if word.startswith("+") and not known:
            raise Refused(unknown_key(key))


def run_hydra(task: Task, arguments: list[str], folder: Path | None = None) -> None:
    """Run Hydra's own main: `task` is called for each cell. Raises Refused for what cannot be composed.

    folder: of the run that this one goes on with; None: a new one.
    """
    _register(folder)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us as exceptions instead of Hydra's print and exit
    sys.argv[1:] = _flags_first(arguments)
    main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    try:
        main(task)()
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        raise Refused(explain(error)) from None
    except OSError as error:  # a record that cannot be written ends the run elsewhere: this is the folder itself
        raise Refused(f"cannot make the results folder: {error}; choose another with hydra.run.dir=…") from None


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
    folder = now.sweep.dir if now.mode == RunMode.MULTIRUN else now.runtime.output_dir
    return Path(now.runtime.cwd) / folder  # hydra.job.chdir may have moved this process


def job_label(arguments: list[str]) -> str:
    """What distinguishes this cell in its sweep: its overrides less those that the command line gives to every cell."""
    overrides = [str(override) for override in HydraConfig.get().overrides.task]
    return " ".join([text for text in overrides if text not in arguments] or overrides)


def _flags_first(arguments: list[str]) -> list[str]:
    """Hydra's parser takes overrides in one run only: `a=1 -m b=2` becomes `-m a=1 b=2`.

    An experiment that is a sweep by itself needs no -m: it is added.
    """
    flags = [text for text in arguments if text in ("-m", "--multirun")]
    rest = [text for text in arguments if text not in flags]
    shows = any(
        re.match(r"(--cfg|--info|--help|--hydra-help|-c|-h)(=|$)", text) for text in rest
    )  # nothing is swept then
    return (flags or (["-m"] if not shows and any(map(_is_sweep, rest)) else [])) + rest


def _is_sweep(word: str) -> bool:
    """An experiment that is a sweep by itself: its file says hydra.mode MULTIRUN, and nobody need write -m."""
    key, _, name = word.lstrip("+").partition("=")
    file = conf_dir() / "experiment" / f"{name}.yaml"
    return key == "experiment" and file.is_file() and OmegaConf.select(OmegaConf.load(file), "hydra.mode") == "MULTIRUN"


def _parse(arguments: list[str]) -> Any:
    from hydra._internal.utils import get_args_parser  # Hydra's own: the same words mean the same thing

    told = StringIO()
    try:
        with redirect_stderr(told):
            return get_args_parser().parse_args(_flags_first(arguments))
    except SystemExit:
        lines = told.getvalue().strip().splitlines() or ["unknown option"]
        raise Refused(f"{lines[-1].partition('error: ')[2] or lines[-1]} (see distbench --help)") from None


def _register(folder: Path | None = None) -> None:
    ConfigStore.instance().store(name="schema", node=Config)
    maker = new_folder if folder is None else lambda parent: str(folder)
    OmegaConf.register_new_resolver("new_folder", maker, replace=True)
    OmegaConf.register_new_resolver("by_device", by_device, replace=True)


def by_device(device: object, engine: object, on_cpu: object, on_gpu: object) -> object:
    """One of two values, by where the cell will compute: an experiment's size that suits both a CPU and a GPU.

    device, engine: as the configuration has them; auto is a GPU where this process sees one.
    """
    if str(engine) == "numpy" or str(device) == "cpu":
        return on_cpu
    if str(device) == "auto" and str(engine) != "cupy":
        import torch

        return on_gpu if torch.cuda.is_available() else on_cpu
    return on_gpu


@cache
def new_folder(parent: str) -> str:
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

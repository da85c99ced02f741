"""distbench's main: who am I, form the world, then lead (rank 0) or follow."""

from __future__ import annotations

import gc
import io
import os
import sys
import traceback
from typing import TYPE_CHECKING

from distbench import __version__
from distbench.alive import Watch, write_error_file
from distbench.launch import Launch, LaunchError, detect
from distbench.launchers import chosen, misused
from distbench.show.usage import USAGE
from distbench.verbs import is_verb, run_verb, unknown_word

if TYPE_CHECKING:
    from distbench.world import World

_TIMEOUTS = {"run.timeout_s": 60.0, "run.step_timeout_s": 1800.0}


def main(arguments: list[str] | None = None) -> int:
    """Run distbench; returns the exit status: 0, 1 (a cell failed or was wrong), 2 (refused)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Read as torch is loaded. Where a rank dies, torch's warnings of lost connections, with 40 lines of C++ frames each, come
    # amid the one line that says who.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without µ or · is no reason to fail
    if is_verb(arguments):
        return run_verb(arguments)
    if arguments and arguments[0] in ("-sc", "--shell-completion"):
        from distbench.completion import main as complete

        return complete(arguments)
    try:
        launch = detect(os.environ)
        timeouts = [_literal(arguments, key, default) for key, default in _TIMEOUTS.items()]
    except ValueError as error:
        return refuse(str(error))
    if answer := _answer(arguments):
        return _say(answer) if launch.rank == 0 else 0
    if name := chosen(arguments):
        return _dispatch(name, launch, arguments, timeouts)
    if wrong := unknown_word(arguments):
        return refuse(wrong) if launch.rank == 0 else 0
    try:
        if launch.world_size == 1 and (status := _refused_early(arguments)) is not None:
            return status
    except KeyboardInterrupt:
        return refuse("interrupted before anything was started") and 1
    return _run(launch, Watch(launch, *timeouts), arguments)


def refuse(reason: str) -> int:
    """Say why on stderr and where torchrun looks; exit status 2."""
    write_error_file(reason)
    print(f"distbench: {reason}", file=sys.stderr, flush=True)
    return 2


def _run(launch: Launch, watch: Watch, arguments: list[str]) -> int:
    from distbench.greet import NotThisRun
    from distbench.world import World

    watch.start()
    world = World(launch, watch)
    try:
        world.join()
    except NotThisRun as error:  # told by the rank that it concerns
        watch.end(f"the ranks could not join: {error}", "failed", speaks=True)
    except (LaunchError, RuntimeError, OSError) as error:
        watch.could_not_join(error)
    gc.freeze()  # torch's 190,000 objects live as long as the run: no collection walks them again
    try:
        status = _lead(world, arguments) if world.is_root else _follow(world)
    except Exception as error:  # a defect: the others must hear of it
        traceback.print_exc()
        watch.fail(error)
        raise
    world.leave()
    return status


def _dispatch(name: str, launch: Launch, arguments: list[str], timeouts: list[float]) -> int:
    """Lead a sweep whose cells are launches of their own."""
    if launch.rank != 0:
        return 2  # rank 0 says why
    if reason := misused(name, launch, arguments):
        return refuse(reason)
    from distbench.compose import Refused
    from distbench.launchers.batch import Rank
    from distbench.launchers.sweep import dispatch

    try:
        return dispatch(name, arguments, Rank(arguments, timeouts))
    except Refused as refused:
        return refuse(str(refused))


def _lead(world: World, arguments: list[str]) -> int:
    world.watch.enter("compose")
    from distbench.compose import Refused
    from distbench.lead import lead

    gc.freeze()  # nor Hydra's: the samples of each cell begin with a collection, composing makes many
    try:
        return lead(world, arguments)
    except Refused as refused:
        return refuse(str(refused))


def _follow(world: World) -> int:
    from distbench.cell import follow  # without Hydra, which rank 0 alone imports

    gc.freeze()
    return follow(world)


def _refused_early(arguments: list[str]) -> int | None:
    """Alone, a wrong word is answered before torch is imported."""
    from distbench.compose import Refused, compose_single

    try:
        compose_single(arguments)
    except Refused as refused:
        return refuse(str(refused))
    return None


def _answer(arguments: list[str]) -> str | None:
    if "--help" in arguments or "-h" in arguments:
        return USAGE
    if "--version" in arguments:
        return f"distbench {__version__}"
    return None


def _say(text: str) -> int:
    print(text)
    return 0


def _literal(arguments: list[str], key: str, default: float) -> float:
    """A time-out as written on the command line: needed before the ranks can talk."""
    for argument in reversed(arguments):  # the last one counts, as it does for Hydra
        name, _, text = argument.lstrip("+").partition("=")
        if name == key:
            try:
                seconds = float(text)
            except ValueError:
                raise LaunchError(f"{key}={text}: must be a number of seconds") from None
            if not 0 < seconds <= 10**7:
                raise LaunchError(f"{key}={text}: seconds, more than 0 and at most 10000000")
            return seconds
    return default


if __name__ == "__main__":
    sys.exit(main())

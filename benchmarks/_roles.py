"""The processes that startup.py starts: `_roles.py ROLE [arguments]`. Each writes what it found to $BENCH_TOLD.

Times are on CLOCK_MONOTONIC. Nothing is imported here that the role's own program would not import at that point.
"""

import os
import sys
import time
from typing import Any


def tell(text: str) -> None:
    with open(os.environ["BENCH_TOLD"], "w", encoding="utf-8") as file:
        file.write(text)


def since_start_ns() -> int:
    """Nanoseconds since startup.py started the launcher."""
    return time.monotonic_ns() - int(os.environ["BENCH_START_NS"])


def join() -> int:
    """The bare script: import torch, join the gloo world. Rank 0 tells when it is in."""
    import torch  # noqa: F401
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if os.environ["RANK"] == "0":
        tell(str(since_start_ns()))
    dist.destroy_process_group()
    return 0


def fill() -> int:
    """distbench itself. Rank 0 tells when it enters the filling of A and B, after their allocation."""
    from distbench import __main__, alive

    enter = alive.Watch.enter

    def marked(watch: alive.Watch, stage: str) -> None:
        if stage == "fill":  # entered once more after the allocation: the last one stays
            tell(str(since_start_ns()))
        enter(watch, stage)

    if os.environ["RANK"] == "0":
        alive.Watch.enter = marked  # type: ignore[method-assign]
    return __main__.main(sys.argv[1:])


def sweep() -> int:
    """distbench itself. Rank 0 tells the seconds of its leading and of each stage in it, summed over the cells."""
    from distbench import __main__

    if os.environ.get("RANK", "0") != "0":
        return __main__.main(sys.argv[1:])

    import json

    from distbench import alive, cell, lead

    spent: dict[str, float] = {}
    spans = {"s": 0.0}
    now = {"stage": "hydra", "since": 0}

    def stage(name: str) -> None:
        told = time.monotonic_ns()
        spent[str(now["stage"])] = spent.get(str(now["stage"]), 0.0) + (told - int(now["since"])) / 1e9
        now.update(stage=name, since=told)

    enter, record, task, run = alive.Watch.enter, cell.Cell.record, lead.Leader.task, lead.Leader.run

    def marked_enter(watch: alive.Watch, name: str) -> None:
        stage(name)
        enter(watch, name)

    def marked_record(*arguments: Any, **named: Any) -> object:
        stage("record")  # until the cell's end: the line on disk, the row on the screen
        samples = named["samples"]
        spans["s"] += sum(samples.span_s) + sum(samples.dropped_span_s)
        return record(*arguments, **named)

    def marked_task(leader: lead.Leader, composed: Any) -> object:
        stage("begin")
        rate = task(leader, composed)
        stage("hydra")
        return rate

    def marked_run(leader: lead.Leader) -> int:
        began = time.monotonic_ns()
        now["since"] = began
        status = run(leader)
        total_s = (time.monotonic_ns() - began) / 1e9
        stage("end")
        tell(json.dumps({"total": total_s, "stages": spent, "spans": spans["s"]}))
        return status

    alive.Watch.enter = marked_enter  # type: ignore[method-assign]
    cell.Cell.record = marked_record  # type: ignore[assignment,method-assign]
    lead.Leader.task = marked_task  # type: ignore[assignment,method-assign]
    lead.Leader.run = marked_run  # type: ignore[method-assign]
    return __main__.main(sys.argv[1:])


def empty() -> int:
    """An empty job under Hydra's own main and launcher, with distbench's configuration. Tells the seconds it took."""
    import hydra

    from distbench.compose import _register, conf_dir

    _register()
    job = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(lambda composed: None)
    began = time.monotonic_ns()
    job()
    tell(str((time.monotonic_ns() - began) / 1e9))
    return 0


if __name__ == "__main__":
    sys.exit({"join": join, "fill": fill, "sweep": sweep, "empty": empty}[sys.argv.pop(1)]())

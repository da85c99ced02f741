"""One cell, from its configuration to its record: the stages in order. All ranks run this together."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch

from distbench import clock, cores, record, verify
from distbench.collects import TABLE, resolve_path
from distbench.collects.base import Collect, Means, Site
from distbench.config import Config, Device, Path, Split, Start, Upload, as_dict, cell_id, from_dict
from distbench.data import fill_block
from distbench.engines import ENGINES
from distbench.layout import Block
from distbench.measure import Samples, Timed, barrier_cost_s, measure
from distbench.place import Place, find_place, oversubscribed
from distbench.plan import Plan, does_not_fit, make_plan, refuse_path
from distbench.rules import check
from distbench.summary import samples_of, summary
from distbench.timed import timed_path
from distbench.world import CellFailed, World

Tell = Callable[[str, Any], None]
"""Told (event, detail) on rank 0 as a cell goes on; see show.console."""


class Wrong(Exception):
    """The product is wrong; carries the verification for the record."""

    def __init__(self, verification: dict[str, Any]) -> None:
        super().__init__(verification["reason"])
        self.verification = verification


def follow(world: World) -> int:
    """The ranks other than 0: take part in each cell that rank 0 sends, until it sends none."""
    while True:
        world.watch.enter("wait for a cell")
        message = world.broadcast_json()
        if message["cell"] is None:
            return 0
        Cell(world, from_dict(message["cell"]), lambda event, detail: None).outcome()


def plan_of(config: Config, world_size: int, device: Device) -> Plan:
    """The plan of a checked configuration on a kind of device; pure numbers."""
    collect = TABLE[config.collect, resolve_path(config.collect, config.path, device)]

    def elements(problem: Block, rank: int) -> tuple[int, int]:
        return collect.elements(Site(problem, config.split, config.collect, world_size, rank, device is Device.cuda))

    return make_plan(config, world_size, elements)


class Cell:
    """The state of one cell on one rank; `run` is the list of stages."""

    def __init__(self, world: World, config: Config, tell: Tell) -> None:
        self.world, self.config, self.tell = world, config, tell
        self.identity = cell_id(config, world.size)
        self.place: Place | None = None
        self.plan: Plan | None = None
        self.collect: Collect | None = None
        self.multiply: Callable[[], object] | None = None
        self.began = time.monotonic()

    def outcome(self) -> dict[str, Any]:
        """Run the cell and return its record (rank 0's is the one that counts).

        Never raises for what a cell can do: a failure or a wrong product is a record with that status.
        """
        try:
            return self.run()
        except Wrong as wrong:
            return self.record("wrong", f"wrong result: {wrong}", verification=wrong.verification)
        except (CellFailed, ValueError) as error:
            return self.record("failed", str(error))
        except Exception as error:  # a defect: the others cannot know where this rank is, so the run ends
            traceback.print_exc()
            self.world.watch.fail(error)
            raise
        finally:
            self.close()
            self.world.watch.enter("record")

    def run(self) -> dict[str, Any]:
        """The stages in order."""
        self._stage("plan")
        check(self.config)
        place = self.place = find_place(self.world, self.config)
        plan = self._planned(place)
        self.tell("placed", place)
        site = Site(plan.problem, self.config.split, self.config.collect, self.world.size, self.world.rank)
        self._stage("fill")
        a, b, sources = self._operands(site, place)
        collect = self.collect = self._connected(site, place)
        timed = self._timed(site, place, (a, b), sources, collect)
        setup_s = time.monotonic() - self.began
        self._stage("first run")
        self.world.attempt("first run", lambda: _poison(collect, sources))
        first_s = self._warm(timed, 1)
        self._stage("verify")
        verifier = self._verifier(site, a, b)
        verification = verifier(collect.held, True)
        if self.config.measure.warmup > 1:
            self._stage("warm up")
            self._warm(timed, self.config.measure.warmup - 1)
        self._stage("measure")
        samples = self._measured(timed, place)
        self._stage("verify")
        verifier(collect.held, False)  # what the last sample left must be right too
        busbw = self._path(place) is Path.collective
        combined = self.world.attempt("combine", lambda: summary(samples, plan, self.config.collect if busbw else None))
        outcome = combined | {
            "setup_s": setup_s,
            "first_s": first_s,
            "barrier_s": barrier_cost_s(self.world),
        }
        return self.record("ok", None, samples=samples, result=outcome, verification=verification)

    def record(
        self,
        status: str,
        reason: str | None,
        samples: Samples | None = None,
        result: dict[str, Any] | None = None,
        verification: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The cell's record, whatever became of it."""
        ranks = [] if self.place is None else [dict(rank) for rank in self.place.ranks]
        if self.plan is not None:
            for rank in ranks:
                rank["shard"] = self.plan.rank(rank["rank"]).shard.sizes()
        return {
            "schema": record.SCHEMA,
            "cell": self.identity,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "status": status,
            "reason": reason,
            "config": self._resolved(),
            "autos": [key for key in ("path", "device", "backend") if getattr(self.config, key).value == "auto"],
            "world": {
                "size": self.world.size,
                "launcher": self.world.launch.launcher,
                "backend": None if self.place is None else str(self.place.backend),
                "ranks": ranks,
                "notes": list(self.world.launch.notes) if self.place is None else self.place.notes,
            },
            "work": None if self.plan is None else {"flop": self.plan.flop, "bytes": self.plan.bytes},
            "samples": None if samples is None else samples_of(samples),
            "result": result,
            "verification": verification,
            "environment": record.environment()
            | {"command": record.command(self.world.launch)}
            | {"settings": ENGINES[self.config.engine].settings(), "thread_pools": cores.thread_pools()},
        }

    def close(self) -> None:
        """Free what the cell held, so that the next one finds the memory as it was."""
        if self.collect is not None:
            with suppress(RuntimeError):  # a failed cell's device may refuse
                self.collect.close()
        self.collect = self.multiply = None
        if self.place is not None and self.place.device is Device.cuda:
            torch.cuda.empty_cache()

    # --- stages ------------------------------------------------------------------------------------------------------

    def _stage(self, name: str) -> None:
        self.world.watch.enter(name)
        self.tell("stage", name)

    def _planned(self, place: Place) -> Plan:
        hosts = len({rank["host"] for rank in place.ranks})
        refuse_path(self.config, hosts, place.device, place.backend)
        plan = self.plan = plan_of(self.config, self.world.size, place.device)  # the record of a refusal tells it too
        shortage = does_not_fit(plan, place.rooms, place.device is Device.cpu)
        if shortage is not None:
            raise ValueError(f"does not fit: {shortage}")
        return plan

    def _operands(
        self, site: Site, place: Place
    ) -> tuple[torch.Tensor, torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """A and B on the device, filled, and the (device, host) pairs that each sample uploads."""
        w, shard = self.config.workload, site.shard
        dtype = getattr(torch, str(w.dtype))

        def allocate() -> tuple[torch.Tensor, torch.Tensor]:
            return (
                torch.empty(shard.a_shape, dtype=dtype, device=place.torch_device),
                torch.empty(shard.b_shape, dtype=dtype, device=place.torch_device),
            )

        def fill() -> list[tuple[torch.Tensor, torch.Tensor]]:
            a_extent, b_extent = (shard.batch, shard.m, shard.k), (shard.batch, shard.k, shard.n)
            common = (w.dtype, w.fill, place.threads)
            told = lambda share: self.tell("progress", share)  # noqa: E731
            fill_block(a, w.seed, "a", site.problem.m.size, a_extent, *common, told)
            fill_block(b, w.seed, "b", site.problem.k.size, b_extent, *common)
            uploaded = {Upload.none: [], Upload.b: [b], Upload.ab: [a, b]}[w.upload]
            return [(operand, _host_copy(operand)) for operand in uploaded]

        a, b = self.world.attempt("allocate", allocate)
        return a, b, self.world.attempt("fill", fill)

    def _connected(self, site: Site, place: Place) -> Collect:
        if self.world.size > 1:

            def connect() -> None:  # returns nothing: a kept reference would keep a broken group open
                self.world.data(str(place.backend))

            self.world.attempt("connect", connect)
        path = self._path(place)
        dtype = getattr(torch, str(self.config.workload.dtype))
        means = Means(self.world, str(place.backend), place.torch_device, dtype)
        collect = self.world.attempt("allocate", lambda: TABLE[self.config.collect, path](site, means))
        self.collect = collect
        offers = self.world.gather_json(collect.offer())
        self.world.attempt("allocate", lambda: collect.connect(offers))
        return collect

    def _timed(
        self,
        site: Site,
        place: Place,
        operands: tuple[torch.Tensor, torch.Tensor],
        sources: list[tuple[torch.Tensor, torch.Tensor]],
        collect: Collect,
    ) -> Timed:
        engine = ENGINES[self.config.engine]
        engine.settings()
        multiply = self.multiply = self.world.attempt("allocate", lambda: _product(engine, site, operands, collect))

        def upload() -> None:
            for operand, source in sources:
                operand.copy_(source, non_blocking=True)

        parts: list[tuple[str, Callable[[], object]]] = [("h2d", upload)] if sources else []
        parts += [("gemm", multiply)]
        if self._path(place) is not Path.in_place:
            parts.append(("collect", collect.run))
        return timed_path(parts, place.torch_device)

    def _warm(self, timed: Timed, rounds: int) -> float:
        """Run the timed path untimed; returns the seconds of this rank's last round."""
        last_s = 0.0
        for _ in range(rounds):
            begin = time.monotonic()
            self.world.attempt("warm up", timed.run)
            last_s = time.monotonic() - begin
        return last_s

    def _verifier(
        self, site: Site, a: torch.Tensor, b: torch.Tensor
    ) -> Callable[[torch.Tensor | None, bool], dict[str, Any]]:
        """A call that verifies what every rank holds; it raises Wrong on all ranks if any of it is wrong.

        Where the collect adds products up, each rank's own product is computed once more and checked alone (if asked
        for): in a sum over ranks in a narrow dtype one rank's error of a percent would hide in the roundings.
        """
        workload, world = self.config.workload, self.world
        x = verify.random_x(workload.seed, site.problem.n.size)
        own = world.attempt("verify", lambda: verify.expected_part(a, b, site, x))
        expected = own
        if not verify.is_local(site):
            total = world.sum_floats(world.attempt("verify", lambda: verify.placed(own, site)))
            expected = total if site.held is None else total[site.held.batch.slice, site.held.m.slice]

        def agreed(held: torch.Tensor | None, block: Block | None, rows: torch.Tensor, alone: bool) -> dict[str, Any]:
            def verdict() -> dict[str, Any] | None:
                if held is None or block is None:
                    return None
                return asdict(verify.check(held, block, rows, x, workload, site, own=alone))

            verification = verify.combined(world.gather_json(record.finite(world.attempt("verify", verdict))))
            if not verification["ok"]:
                raise Wrong(verification)
            return verification

        def verifier(held: torch.Tensor | None, products_too: bool) -> dict[str, Any]:
            verification = agreed(held, site.held, expected, alone=False)
            if products_too and self.config.split is Split.k and not verify.is_local(site) and self.collect is not None:
                assert self.multiply is not None
                world.attempt("verify", self.multiply)
                agreed(self.collect.shard, site.shard, own, alone=True)
            return verification

        return verifier

    def _measured(self, timed: Timed, place: Place) -> Samples:
        world = self.world
        domains = [rank["clock"] for rank in place.ranks]
        clocks = clock.offsets_to_rank0(world, domains)
        start, reason = self.config.measure.start, None
        if start is Start.auto:
            start = Start.window
            if world.size > 1 and oversubscribed(place):
                start, reason = Start.barrier, "more threads than cores"
        samples = measure(world, timed, self.config.measure, start, reason, clocks)
        after, _ = clock.offsets_to_rank0(world, domains)
        samples.clock_error_s += max(abs(now - then) for now, then in zip(after, clocks[0], strict=True)) / 1e9  # drift
        return samples

    def _path(self, place: Place) -> Path:
        return resolve_path(self.config.collect, self.config.path, place.device)

    # --- the record --------------------------------------------------------------------------------------------------

    def _resolved(self) -> dict[str, Any]:
        """The configuration with its autos replaced by what they came to."""
        resolved: dict[str, Any] = as_dict(self.config)
        if self.place is not None:
            device, backend, path = self.place.device, self.place.backend, self._path(self.place)
            resolved |= {"device": str(device), "backend": str(backend), "path": str(path)}
        return resolved


def _product(
    engine: Any, site: Site, operands: tuple[torch.Tensor, torch.Tensor], collect: Collect
) -> Callable[[], object]:
    if site.shard.c_numel == 0:
        return lambda: None  # an empty shard has nothing to compute
    if site.shard.k.size == 0:
        return collect.shard.zero_  # a sum of no terms
    multiply: Callable[[], object] = engine.prepare(*operands, collect.shard)
    return multiply


def _poison(collect: Collect, sources: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """NaN wherever C will be and in every operand that the upload must bring: what is not moved shows."""
    collect.poison()
    for operand, _ in sources:
        operand.fill_(float("nan"))


def _host_copy(operand: torch.Tensor) -> torch.Tensor:
    """A copy in host memory, page-locked where a GPU will read it."""
    source = torch.empty(operand.shape, dtype=operand.dtype, pin_memory=operand.is_cuda)
    return source.copy_(operand)

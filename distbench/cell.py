"""One cell, from its configuration to its record: the stages in order. All ranks run this together."""

from __future__ import annotations

import pathlib
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from distbench import (
    ceilings,
    cell_record,
    clock,
    guards,
    memory,
    modes,
    probe,
    profiling,
    record,
    telemetry,
)
from distbench.collects import TABLE, resolve_path
from distbench.collects.base import Collect, Means, Site
from distbench.config import (
    Cache,
    CollectName,
    Config,
    ConfigError,
    Device,
    Drive,
    Lacking,
    Path,
    Profile,
    Start,
    Upload,
    cell_id,
    from_dict,
)
from distbench.drives import DRIVES
from distbench.dtypes import result
from distbench.engines import ENGINES
from distbench.health import checkup, verdicts
from distbench.layout import Block
from distbench.loop import LOOPS, REPEATS, looped
from distbench.measure import Samples, barrier_cost_s, measure
from distbench.place import Place, find_place, oversubscribed
from distbench.plan import Plan, does_not_fit, make_plan, refuse_path
from distbench.rules import check
from distbench.show.peaks import peak_of
from distbench.stats import timeit
from distbench.summary import summary
from distbench.supports import Unsupported, refuse_dtype, refuse_shapes
from distbench.timed import Timed, standing_aside
from distbench.unit import Unit
from distbench.verifier import Verifier, Wrong
from distbench.world import CellFailed, World

Tell = Callable[[str, Any], None]
"""Told (event, detail) on rank 0 as a cell goes on; see show.console."""


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
    collect = TABLE[config.collect, resolve_path(config, device)]

    def elements(problem: Block, part: int) -> tuple[int, int]:
        site = Site(problem, config.split, config.collect, world_size, part, device is Device.cuda)
        return collect.elements(site, config)

    return make_plan(config, world_size, elements)


class Cell:
    """The state of one cell on one rank; `run` is the list of stages."""

    def __init__(self, world: World, config: Config, tell: Tell, folder: pathlib.Path | None = None) -> None:
        self.folder = folder or pathlib.Path()
        """Where rank 0 keeps what belongs to the run."""
        self.trace: dict[str, Any] | None = None
        self.offset_ns = 0
        self.world, self.config, self.tell = world, config, tell
        self.identity = cell_id(config, world.size)
        self.place: Place | None = None
        self.plan: Plan | None = None
        self.units: list[Unit] = []
        self.timed: Timed | None = None
        self.settings: dict[str, Any] = {}
        self.telemetry: list[dict[str, Any]] | None = None
        self.mode = modes.told_of(config.measure)
        self.limits: dict[str, Any] | None = None
        self.ceilings: list[dict[str, Any]] | None = None
        """What the machine can do, where this cell measures it."""
        self.init: dict[str, Any] = {}
        """Seconds of the slowest rank: fill_s, A and B made on the device; init_host_s, A made on the host and copied.

        With measure.loop also what the plain loop gave on rank 0."""
        self.refused = False
        """It cannot be done here, and nothing was allocated: a single cell is then refused instead of recorded."""
        self.began = time.monotonic()
        self.finished: dict[str, Any] | None = None
        """The record, but for the memory left: what is measured stands, though the run ends before that is known."""

    def outcome(self) -> dict[str, Any]:
        """Run the cell and return its record (rank 0's is the one that counts).

        Never raises for what a cell can do: a failure or a wrong product is a record with that status.
        """
        before = memory.in_use()
        told = self.finished = self._attempted()
        memory.settle()
        return told | {"memory": memory.told(self.world.gather_json([before, memory.in_use()]))}

    def _attempted(self) -> dict[str, Any]:
        try:
            return self.run()
        except Wrong as wrong:
            told = self.record("wrong", f"wrong result: {wrong}", verification=wrong.verification)
            return told | {"health": verdicts.of_wrong(told, wrong.verification) if self.config.health.check else None}
        except Unsupported as error:
            return self.record("skipped", str(error))
        except Lacking as error:
            self.refused = not self.units
            return self.record("skipped", str(error))
        except ConfigError as error:
            self.refused = not self.units
            return self.record("failed", str(error))
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
        self._stage("fill")
        self._fill(plan, place)
        self._connect(place)
        timed = self.timed = self._timed(place)
        setup_s = time.monotonic() - self.began
        self._stage("first run")
        self._each("first run", Unit.poison)
        first_s = self._warm(timed, 1)
        self._stage("verify")
        verifier = Verifier(self.world, self.config, plan.problem, self.units)
        verification = verifier.check()
        if self.config.measure.warmup > 1:
            self._stage("warm up")
            self._warm(timed, self.config.measure.warmup - 1)
        timed = self._in_mode(timed, place)
        self._stage("measure")
        samples = self._measured(timed, place)
        self._stage("verify")
        verifier.check_again()  # what the last sample left must be right too
        if self.config.measure.loop:
            self._stage("loop")
            told = self.world.attempt("loop", lambda: looped(timed, self.units, self.config.measure.loop))
            loop = self.world.gather_json(told)[0]
            self.init["loop"] = loop | {"timeit_s": timeit(samples.span_s, LOOPS, REPEATS)}
        if self.config.measure.limits:
            self._stage("limits")
            self.limits = probe.limits(self.world, self.config, place, self.units, plan, self.mode.inner)
        if self.config.profile is Profile.torch:
            self._stage("profile")
            self._profiled(place)
        if self.config.ceilings.measure:
            self._stage("ceilings")
            self.ceilings = ceilings.measured(self.world, self.config, place)
        examined: checkup.Checkup | None = None
        if self.config.health.check:
            self._stage("health")
            examined = checkup.measured(self.world, self.config, place, self.units)
        busbw = self._path(place) is Path.collective and self.config.collect is not CollectName.topk
        combined = self.world.attempt("combine", lambda: summary(samples, plan, self.config.collect if busbw else None))
        if place.is_shared:
            combined["gemm_tflops"] = (
                None  # no rank's product is alone on its GPU, and its events do not tell by how much
            )
        outcome = combined | {
            "setup_s": setup_s,
            "first_s": first_s,
            "barrier_s": barrier_cost_s(self.world),
            **self.init,
            **telemetry.energy(self.telemetry or [], place.ranks, plan.flop * self.mode.inner),
        }
        told = self.record("ok", None, samples=samples, result=outcome, verification=verification)
        told = cell_record.under_ceilings(self, guards.judged(told, peak_of(told), self.config.guard))
        return told if examined is None else checkup.examined(told, examined, self.config)

    record = cell_record.of

    def close(self) -> None:
        """Free what the cell held, so that the next one finds the memory as it was."""
        if self.timed is not None:
            self.timed.close()
        for unit in self.units:
            with suppress(RuntimeError):  # a failed cell's device may refuse
                unit.close()
        self.units, self.timed = [], None
        if self.place is not None and self.place.device is Device.cuda:
            torch.cuda.empty_cache()

    # --- stages ------------------------------------------------------------------------------------------------------

    def _stage(self, name: str) -> None:
        self.world.watch.enter(name)
        self.tell("stage", name)

    def _planned(self, place: Place) -> Plan:
        hosts = len({rank["host"] for rank in place.ranks})
        caps = [tuple(rank["capability"]) for rank in place.ranks if rank["capability"]]
        refuse_dtype(self.config, place.device, min(caps, default=None))
        refuse_shapes(self.config, place.parts, place.device)
        modes.refuse_graph(self.config.measure, place.device)
        refuse_path(self.config, hosts, place.device, place.backend)
        plan = self.plan = plan_of(self.config, place.parts, place.device)  # the record of a refusal tells it too
        shortage = does_not_fit(plan, place.rooms, place.device is Device.cpu)
        if shortage is not None:
            chunk = self.config.topk.chunk_rows if self.config.collect is CollectName.topk else None
            if chunk is not None:
                raise ConfigError("topk.chunk_rows", chunk, f"does not fit: {shortage}; a smaller chunk may")
            raise ConfigError("workload.m", self.config.workload.m, f"does not fit: {shortage}")
        return plan

    def _each(self, stage: str, step: Callable[[Unit], object]) -> None:
        """One step of every unit of this process, and the vote on it."""

        def all_units() -> None:
            for unit in self.units:
                step(unit)

        self.world.attempt(stage, all_units)

    def _fill(self, plan: Plan, place: Place) -> None:
        sites = [
            (Site(plan.problem, self.config.split, self.config.collect, place.parts, part), device)
            for part, device in place.own
        ]
        self.units = [Unit(site, self.config, device) for site, device in sites]
        self._each("allocate", Unit.allocate)
        if self.config.measure.host_init:
            self._took("init_host_s", Unit.fill_from_host)
        self._took("fill_s", lambda unit: unit.fill(place.threads, lambda share: self.tell("progress", share)))

    def _took(self, name: str, step: Callable[[Unit], object]) -> None:
        """`_each` of the fill stage, and how long the slowest rank took until its devices were done."""
        begin = time.monotonic()
        self._each("fill", step)
        self._each("fill", Unit.settle)
        own_s = time.monotonic() - begin
        self.init[name] = max(self.world.gather_json(own_s))

    def _connect(self, place: Place) -> None:
        if self.world.size > 1 and self.config.drive is Drive.process:

            def connect() -> None:  # returns nothing: a kept reference would keep a broken group open
                self.world.data(str(place.backend))

            self.world.attempt("connect", connect)
        make = TABLE[self.config.collect, self._path(place)]
        dtype = result(self.config.workload.dtype)

        def allocate(unit: Unit) -> None:
            means = Means(self.world, str(place.backend), unit.device, dtype, self.config)
            with unit.context():
                unit.collect = make(unit.site, means)

        self._each("allocate", allocate)
        own = [unit.collect.offer() for unit in self.units if unit.collect is not None]
        offers = [offer for told in self.world.gather_json(own) for offer in told]

        def meet(unit: Unit) -> None:
            assert unit.collect is not None
            unit.collect.connect(offers)

        self._each("allocate", meet)

    def _timed(self, place: Place) -> Timed:
        engine = ENGINES[self.config.engine]
        self.settings = engine.settings(self.config.workload.dtype)
        self._each("allocate", lambda unit: unit.prepare(engine))
        collects = self._path(place) is not Path.in_place
        if not self.units:
            upload = ["h2d"] if self.config.workload.upload is not Upload.none else []
            prepares = TABLE[self.config.collect, self._path(place)].before is not Collect.before
            return standing_aside((*upload, "gemm", *(["collect"] if collects else [])), prepares)
        return DRIVES[self.config.drive](self.units, collects)

    def _warm(self, timed: Timed, rounds: int) -> float:
        """Run the timed path untimed; returns the seconds of this rank's last round."""
        last_s = 0.0
        for _ in range(rounds):
            begin = time.monotonic()
            timed.before()
            self.world.attempt("warm up", timed.run)
            last_s = time.monotonic() - begin
        return last_s

    def _in_mode(self, timed: Timed, place: Place) -> Timed:
        """The timed path in the state that measure.* asks for; the very same path where it asks for nothing."""
        settings, world, told = self.config.measure, self.world, self.mode
        if not modes.is_plain(settings):
            self._stage("prepare")
            told.inner = 1 if settings.inner == "auto" else int(settings.inner)
            if told.inner > 1 or settings.graph:
                timed = self._repeating(timed, place, told.inner, settings.graph)
            while settings.inner == "auto":
                wanted = modes.inner_for(told.inner, modes.window_s(world, timed))
                if wanted == told.inner:
                    break
                told.inner = wanted
                timed = self._repeating(timed, place, wanted, settings.graph)
            if settings.cache is Cache.cold:
                devices = [unit.device for unit in self.units]
                timed = world.attempt("prepare", lambda: modes.cold(world, timed, devices, told))
            self.timed = timed
            self._each("prepare", Unit.poison)
            self._warm(timed, 1)
        if settings.settle:
            self._stage("settle")
        modes.rest_or_settle(world, settings, timed, place.ranks[world.rank]["device_uuid"], told)
        return timed

    def _repeating(self, timed: Timed, place: Place, inner: int, graph: bool) -> Timed:
        """The timed path of `inner` products a sample."""
        self._each("prepare", lambda unit: unit.again(inner, graph))
        if self.units:
            timed.close()
            timed = self.timed = DRIVES[self.config.drive](self.units, self._path(place) is not Path.in_place)
        return timed

    def _measured(self, timed: Timed, place: Place) -> Samples:
        world = self.world
        domains = [rank["clock"] for rank in place.ranks]
        clocks = clock.offsets_to_rank0(world, domains)
        start, reason = self.config.measure.start, None
        if start is Start.auto:
            start = Start.window
            if world.size > 1 and oversubscribed(place):
                start, reason = Start.barrier, "more threads than cores"
        state = telemetry.Telemetry(place.ranks, world.rank)
        state.begin()
        samples = measure(world, timed, self.config.measure, start, reason, clocks, state.between)
        spans_s = [*samples.span_s, *samples.dropped_span_s]
        self.telemetry = telemetry.finish(world.gather_json(record.finite(state.end())), place.ranks, spans_s)
        modes.per_product(samples, self.mode.inner)
        self.offset_ns = clocks[0][world.rank]
        after, _ = clock.offsets_to_rank0(world, domains)
        samples.clock_error_s += max(abs(now - then) for now, then in zip(after, clocks[0], strict=True)) / 1e9  # drift
        return samples

    def _profiled(self, place: Place) -> None:
        """The same work with named ranges in it, under the profiler; the measured path has none."""
        cuda, timed = place.device is Device.cuda, self.timed
        assert timed is not None
        engine = ENGINES[self.config.engine]

        def name(unit: Unit) -> None:
            part = unit.site.rank
            unit.around = lambda phase, call: profiling.ranged(f"{phase} {part}", call, cuda)
            unit.prepare(profiling.RangedEngine(engine, part, cuda))

        self._each("profile", name)
        if self.units:
            timed.close()
            timed = self.timed = DRIVES[self.config.drive](self.units, self._path(place) is not Path.in_place)
        self.trace = profiling.profiled(self.world, timed, self.identity, self.folder, self.offset_ns, cuda)

    def _path(self, place: Place) -> Path:
        return resolve_path(self.config, place.device)

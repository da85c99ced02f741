"""Products: the rate per dtype; on the CPU per engine and thread count too. Each is verified before and after it is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy

import torch

from distbench import cores
from distbench.ceilings.rows import Budget, Row, repeated, together
from distbench.collects import TABLE, resolve_path
from distbench.collects.base import Means, Site
from distbench.config import CollectName, Config, ConfigError, Device, DType, EngineName, Layout
from distbench.dtypes import FACTS, result
from distbench.engines import ENGINES
from distbench.layout import whole
from distbench.place import Place
from distbench.rules import check
from distbench.supports import refuse_dtype
from distbench.unit import Unit
from distbench.verifier import Verifier
from distbench.world import CellFailed, World

_SIZES = {Device.cpu: (2048, 1024, 512, 256), Device.cuda: (8192, 4096, 2048, 1024)}
_LONGEST_PRODUCT_S = {Device.cpu: 0.2, Device.cuda: 0.1}
_SHORTEST_S = 5e-3  # of a repetition: far above a launch and a synchronisation
_THREADED = (DType.float64, DType.float32)
"""The dtypes that are measured with fewer threads too."""


def products(world: World, config: Config, place: Place, budget: Budget) -> Iterator[Row]:
    """TFLOP/s of n × n × n products. A dtype that the device lacks is a row with the reason."""
    wanted = list(_wanted(config, place))
    for index, (engine, dtype, threads) in enumerate(wanted):
        share_s = budget.left_s() / (len(wanted) - index)
        try:
            yield _Product(world, config, place, engine, dtype, threads).row(share_s)
        except (ConfigError, CellFailed) as error:  # raised on all ranks alike
            yield Row("GEMM", "TFLOP/s", dtype=str(dtype), engine=str(engine), threads=threads, reason=str(error))
        finally:
            cores.set_threads(place.threads)


def _wanted(config: Config, place: Place) -> Iterator[tuple[EngineName, DType, int]]:
    on_cpu = place.device is Device.cpu
    for dtype, facts in FACTS.items():
        if on_cpu and not facts.on_cpu:
            continue
        for engine in (EngineName.torch, EngineName.numpy) if on_cpu else (EngineName.torch,):
            if engine is EngineName.numpy and not (facts.in_numpy and facts.itemsize >= 4):
                continue  # numpy's float16 product is a loop without BLAS
            counts = {1, place.threads // 2, place.threads} if on_cpu and dtype in _THREADED else {place.threads}
            for threads in sorted(counts - {0}):
                yield engine, dtype, threads


class _Product:
    """One dtype's product on every rank, each its own; all methods are called on all ranks together."""

    def __init__(
        self, world: World, config: Config, place: Place, engine: EngineName, dtype: DType, threads: int
    ) -> None:
        self.world, self.place, self.threads = world, place, threads
        self.config = deepcopy(config)
        self.config.engine, self.config.workload.dtype = engine, dtype
        self.config.workload.layout = Layout.auto
        self.config.device = place.device
        check(self.config)
        caps = [tuple(rank["capability"]) for rank in place.ranks if rank["capability"]]
        refuse_dtype(self.config, place.device, min(caps, default=None))

    def row(self, share_s: float) -> Row:
        """Measure within about `share_s` seconds: the size is the largest whose product is short enough."""
        device = self.place.device
        cores.set_threads(self.threads)
        sizes = _SIZES[device]
        smallest = sizes[-1]
        probe_s = min(self._timed(smallest, 0.0))
        longest_s = min(_LONGEST_PRODUCT_S[device], share_s / 10)
        fitting = [n for n in sizes if probe_s * (n / smallest) ** 3 <= longest_s]
        n = fitting[0] if fitting else smallest
        seconds = self._timed(n, min(1.0, share_s / 2), probe_s * (n / smallest) ** 3)
        w = self.config.workload
        row = Row("GEMM", "TFLOP/s", dtype=str(w.dtype), engine=str(self.config.engine), ranks=self.world.size, n=n)
        row.per = "host" if device is Device.cpu else "device"
        row.threads = self.threads if device is Device.cpu else None
        row.verified = True
        return row.rated(FACTS[w.dtype].flop_per_term * n**3 * together(self.place.ranks) / 1e12, seconds)

    def _timed(self, n: int, longest_s: float, expected_s: float = 1.0) -> list[float]:
        """Seconds of one product, verified before and after. Raises Wrong, CellFailed."""
        world, config = self.world, self.config
        config.workload.batch, config.workload.m, config.workload.n, config.workload.k = 1, n, n, n
        problem = whole(1, n, n, n)
        part, device = self.place.own[0]
        site = Site(problem, config.split, config.collect, self.place.parts, part, device.type == "cuda")
        unit = Unit(site, config, device)
        engine = ENGINES[config.engine]

        def make() -> None:
            unit.allocate()
            unit.fill(self.place.threads, lambda share: None)
            make_collect = TABLE[CollectName.none, resolve_path(config, self.place.device)]
            unit.collect = make_collect(
                site, Means(world, str(self.place.backend), device, result(config.workload.dtype))
            )
            engine.settings(config.workload.dtype)
            unit.prepare(engine)
            unit.poison()

        def once() -> None:
            assert unit.multiply is not None
            unit.multiply()

        try:
            world.attempt("ceilings", make)
            world.attempt("ceilings", once)
            verifier = Verifier(world, config, problem, [unit])
            verifier.check()
            inner = max(1, min(100, int(_SHORTEST_S / max(expected_s, 1e-6)) + 1)) if expected_s < _SHORTEST_S else 1
            (inner,) = world.broadcast_ints([inner])
            seconds = repeated(world, _ended(once, device, inner), longest_s)
            verifier.check_again()
            return [value / inner for value in seconds]
        finally:
            unit.close()


def _ended(once: Callable[[], None], device: torch.device, inner: int) -> Callable[[], None]:
    """`inner` products, and the wait for the last."""

    def work() -> None:
        for _ in range(inner):
            once()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return work

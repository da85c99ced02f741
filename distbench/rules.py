"""What goes with what: the checks of a configuration that need no machine."""

from __future__ import annotations

from distbench.config import (
    Backend,
    Cache,
    CollectName,
    Config,
    ConfigError,
    Device,
    Drive,
    DType,
    EngineName,
    Fill,
    Mode,
    Named,
    Path,
    Profile,
    Split,
    Stream,
    Upload,
    Workload,
)
from distbench.dtypes import FACTS, NEEDS_BLACKWELL

ROW_COLLECTS = (CollectName.none, CollectName.host, CollectName.gather, CollectName.all_gather)
LEGAL_COLLECTS: dict[Split, tuple[CollectName, ...]] = {
    Split.none: (CollectName.none, CollectName.host),
    Split.batch: ROW_COLLECTS,
    Split.m: (*ROW_COLLECTS, CollectName.topk),
    Split.n: ROW_COLLECTS,
    Split.k: (CollectName.none, CollectName.reduce, CollectName.reduce_scatter, CollectName.all_reduce),
}
"""Which collects make sense for a split: sums need reducing, blocks need gathering."""

_ASSEMBLED = (Path.collective, Path.p2p, Path.shared)
LEGAL_PATHS: dict[CollectName, tuple[Path, ...]] = {
    CollectName.none: (Path.in_place,),
    CollectName.host: (Path.in_place, Path.fresh, Path.pageable, Path.pinned, Path.pipelined, Path.shared),
    CollectName.gather: _ASSEMBLED,
    CollectName.all_gather: _ASSEMBLED,
    CollectName.reduce: (Path.collective,),
    CollectName.reduce_scatter: (Path.collective,),
    CollectName.all_reduce: (Path.collective,),
    CollectName.topk: (Path.collective,),
}

_IN_NUMPY = tuple(dtype for dtype, facts in FACTS.items() if facts.in_numpy)
_INT32_MOST = 2**31 - 1
LARGEST = {Fill.normal: 127, Fill.uniform: 127, Fill.integer: 3, Fill.zeros: 1}
"""The largest int8 that a fill makes."""

_SIZES = ("batch", "m", "n", "k")
_FLOAT16_UNIFORM_K = 240_000  # k/4 is the mean of an entry
_LARGEST_SIZE = 2**40  # beyond any machine, and far inside the integers that the fill's row ids use


def check(config: Config) -> None:
    """Refuse what is out of range or impossible on any machine; whole floats in sizes become integers.

    Raises ConfigError, whose message names the key, the value and what is allowed.
    """
    for name in _SIZES:
        _check_size(config.workload, name)
    _check_ranges(config)
    legal = LEGAL_COLLECTS[config.split]
    if config.collect not in legal:
        raise ConfigError("collect", config.collect, f"split={config.split} goes with {_either(legal)}")
    paths = LEGAL_PATHS[config.collect]
    if config.path is not Path.auto and config.path not in paths:
        raise ConfigError("path", config.path, f"collect={config.collect} goes with {_either((Path.auto, *paths))}")
    if config.path is Path.shared and config.split is Split.none:
        # Small products are summed up in C's own memory: ranks that write the same C add to each other's terms.
        raise ConfigError(
            "path", config.path, "split=none has every rank write all of C: split it or leave it in_place"
        )
    _check_engine(config)
    _check_topk(config)
    _check_drive(config)
    _check_ceilings(config)
    _check_health(config)
    _check_modes(config)


def _check_modes(config: Config) -> None:
    measure = config.measure
    if measure.inner != "auto" and (type(measure.inner) is not int or not 1 <= measure.inner <= 10**6):
        raise ConfigError("measure.inner", measure.inner, "auto, or a whole number from 1 to 1000000")
    if not 0 <= measure.min_time_s <= measure.max_time_s:
        raise ConfigError("measure.min_time_s", measure.min_time_s, f"0 to measure.max_time_s={measure.max_time_s:g}")
    if measure.mode is Mode.burst and (measure.settle or measure.min_time_s > 0):
        raise ConfigError("measure.mode", measure.mode, "a burst does not settle: settle=false and min_time_s=0")
    if measure.mode is Mode.sustained and not (measure.settle and measure.min_time_s > 0):
        raise ConfigError(
            "measure.mode", measure.mode, "needs settle=true and min_time_s, as measure=sustained sets them"
        )
    repeats = measure.graph or measure.inner != 1
    key, value = ("measure.graph", "true") if measure.graph else ("measure.inner", measure.inner)
    if repeats and config.collect is not CollectName.none:
        raise ConfigError(key, value, "covers the product alone: use collect=none")
    if repeats and config.workload.upload is not Upload.none:
        raise ConfigError(key, value, "covers the product alone: use workload.upload=none")
    if measure.inner != 1 and measure.cache is Cache.cold:
        raise ConfigError("measure.inner", measure.inner, "from the second product on the caches are hot: 1")
    if not measure.graph:
        return
    if config.device is Device.cpu or config.engine is EngineName.numpy:
        raise ConfigError("measure.graph", "true", "a CUDA graph needs a GPU, and this cell runs on the CPU: false")
    if (
        config.engine is not EngineName.torch
        or config.drive is not Drive.process
        or config.stream is not Stream.default
    ):
        raise ConfigError("measure.graph", "true", "needs engine=torch, drive=process and stream=default")
    if config.streams > 1:
        raise ConfigError("measure.graph", "true", "needs streams=1")
    if config.profile is not Profile.none:
        raise ConfigError("profile", config.profile, "ranges cannot be named inside a CUDA graph: measure.graph=false")


def _check_ceilings(config: Config) -> None:
    if not config.ceilings.measure:
        return
    if config.drive is not Drive.process:
        raise ConfigError("drive", config.drive, "ceilings are measured by a process per device: process")
    if config.split is not Split.none:
        raise ConfigError("split", config.split, "ceilings are measured with every device at work on its own: none")


def _check_health(config: Config) -> None:
    if not config.health.check:
        return
    if config.drive is not Drive.process:
        raise ConfigError("drive", config.drive, "health is judged of a process per device: process")
    if config.split is not Split.none:
        raise ConfigError("split", config.split, "health is judged where every rank does the same work: none")


def _check_size(workload: Workload, name: str) -> None:
    value = getattr(workload, name)
    if isinstance(value, bool) or value != value or value in (float("inf"), float("-inf")) or value != int(value):
        raise ConfigError(f"workload.{name}", value, "a whole number, 1 or more")
    if not 1 <= value <= _LARGEST_SIZE:
        raise ConfigError(f"workload.{name}", value, f"a whole number from 1 to {_LARGEST_SIZE}")
    if isinstance(value, float) and value > 2**53:
        raise ConfigError(f"workload.{name}", value, "too large to be exact as a float; write it as an integer")
    setattr(workload, name, int(value))


def _check_ranges(config: Config) -> None:
    at_least: tuple[tuple[str, float | None, float, float], ...] = (
        ("workload.padding", config.workload.padding, 0, 2**20),
        ("measure.warmup", config.measure.warmup, 1, 10**6),
        ("measure.min_samples", config.measure.min_samples, 1, 10**6),
        ("measure.loop", config.measure.loop, 0, 10**6),
        ("measure.max_samples", config.measure.max_samples, 1, 10**6),
        ("threads", config.threads, 1, 4096),
        ("topk.k", config.topk.k, 1, 1024),
        ("topk.chunk_rows", config.topk.chunk_rows, 1, _LARGEST_SIZE),
        ("shards_per_device", config.shards_per_device, 1, 1024),
        ("streams", config.streams, 1, 8),
        ("health.rounds", config.health.rounds, 1, 10**6),
        ("peak.largest", config.peak.largest, 64, 2**20),
        ("run.world", config.run.world, 1, 10**6),
    )
    for key, value, low, high in at_least:
        if value is not None and not low <= value <= high:
            raise ConfigError(key, value, f"a whole number from {low:.0f} to {high:.0f}")
    for key, seconds in (
        ("measure.max_time_s", config.measure.max_time_s),
        ("measure.settle_max_s", config.measure.settle_max_s),
        ("ceilings.budget_s", config.ceilings.budget_s),
        ("peak.time_s", config.peak.time_s),
        ("run.timeout_s", config.run.timeout_s),
        ("run.step_timeout_s", config.run.step_timeout_s),
    ):
        if not 0 < seconds <= 10**7:
            raise ConfigError(key, seconds, "seconds, more than 0 and at most 10000000")
    limits = [(f"guard.{name}", share) for name, share in vars(config.guard).items()]
    for name in ("slow", "deviations", "spread", "stalls", "late", "late_starts", "link", "ceiling", "link_mib"):
        limits.append((f"health.{name}", getattr(config.health, name)))
    for key, share in limits:
        if not 0 < share < 1000:
            raise ConfigError(key, share, "more than 0 and less than 1000")
    if not 0 < config.measure.target_rel_ci < 1:
        raise ConfigError("measure.target_rel_ci", config.measure.target_rel_ci, "more than 0 and less than 1")
    if not 0 <= config.workload.seed < 2**63:
        raise ConfigError("workload.seed", config.workload.seed, "a whole number from 0 to 2**63 - 1")
    if config.run.world is not None and not config.run.dry_run:
        raise ConfigError(
            "run.world", config.run.world, "only plans a world (run.dry_run=true); a launcher starts a real one"
        )


def _check_topk(config: Config) -> None:
    w, top = config.workload, config.topk
    if config.pipeline.chunk_mib is not None and not 0 < config.pipeline.chunk_mib <= 2**20:
        raise ConfigError("pipeline.chunk_mib", config.pipeline.chunk_mib, "MiB, more than 0 and at most 1048576")
    if config.collect is not CollectName.topk:
        return
    if w.batch != 1:
        raise ConfigError("workload.batch", w.batch, "collect=topk searches one product: batch=1")
    if w.dtype in FACTS and (FACTS[w.dtype].components > 1 or FACTS[w.dtype].is_integer):
        raise ConfigError(
            "workload.dtype", w.dtype, "collect=topk needs scores with an order: a real floating-point type"
        )
    if top.k > w.m:
        raise ConfigError("topk.k", top.k, f"at most the rows of C, workload.m={w.m}")


def _check_drive(config: Config) -> None:
    if config.devices is not None:
        wrong = [number for number in config.devices if type(number) is not int or not 0 <= number < 4096]
        if wrong or not config.devices:
            raise ConfigError("devices", config.devices, "a list of device numbers from 0 on, as in devices=[0,1,2]")
    if config.drive is not Drive.process:
        if config.collect not in (CollectName.none, CollectName.host):
            raise ConfigError("collect", config.collect, f"drive={config.drive} is one process: none or host")
        if config.path is Path.shared:
            raise ConfigError("path", config.path, f"drive={config.drive} is one process, with nobody to share with")
    cut = config.path is Path.pipelined or config.collect is CollectName.topk
    if cut and config.shards_per_device > 1:
        raise ConfigError(
            "shards_per_device",
            config.shards_per_device,
            "path=pipelined and collect=topk cut the product themselves: 1",
        )
    if config.streams > config.shards_per_device:
        raise ConfigError(
            "streams", config.streams, f"at most shards_per_device={config.shards_per_device}: a shard uses one stream"
        )
    on_cpu = config.device is Device.cpu or config.engine is EngineName.numpy
    if on_cpu and config.streams > 1:
        raise ConfigError("streams", config.streams, "streams are a GPU's: use device=cuda")
    if on_cpu and config.stream is not Stream.default:
        raise ConfigError("stream", config.stream, "streams are a GPU's: use device=cuda")


def _check_engine(config: Config) -> None:
    w = config.workload
    if w.dtype is DType.float16 and w.fill is Fill.uniform and w.k > _FLOAT16_UNIFORM_K:
        raise ConfigError(
            "workload.k",
            w.k,
            f"sums of uniform numbers overflow float16 (65504) beyond {_FLOAT16_UNIFORM_K} terms: fill=normal",
        )
    if config.device is Device.cpu and (w.dtype not in FACTS or not FACTS[w.dtype].on_cpu):
        other = "float8_e4m3fn" if w.dtype in NEEDS_BLACKWELL else "float32"
        raise ConfigError("workload.dtype", w.dtype, f"a CPU has no such unit: use {other}, or device=cuda")
    most = _INT32_MOST // LARGEST[w.fill] ** 2
    if w.dtype is DType.int8 and w.k > most:
        raise ConfigError("workload.k", w.k, f"sums of more than {most} int8 products may pass int32 (fill={w.fill})")
    if config.engine is EngineName.numpy:
        if w.dtype not in FACTS or not FACTS[w.dtype].in_numpy:
            raise ConfigError("workload.dtype", w.dtype, f"numpy has {_either(_IN_NUMPY)}")
        if config.device is Device.cuda:
            raise ConfigError("device", config.device, "engine=numpy computes on the CPU: device=cpu or auto")
        if config.backend is Backend.nccl:
            raise ConfigError("backend", config.backend, "nccl needs CUDA tensors; engine=numpy has none: use gloo")
    if config.engine is EngineName.cupy:
        if w.dtype not in _IN_NUMPY:
            raise ConfigError("workload.dtype", w.dtype, f"engine=cupy has {_either(_IN_NUMPY)}")
        if config.device is Device.cpu:
            raise ConfigError("device", config.device, "engine=cupy computes on a GPU: device=cuda or auto")
    if config.device is Device.cpu and config.backend is Backend.nccl:
        raise ConfigError("backend", config.backend, "nccl needs CUDA tensors; with device=cpu use gloo")


def _either(options: tuple[Named, ...]) -> str:
    return ", ".join(str(option) for option in options)

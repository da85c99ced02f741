"""What a cell is made of: typed configuration.

Hydra fills these dataclasses (they are its schema), `rules.check` refuses what is out of range or impossible, and below
that door only these plain objects travel.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, Optional, Union

# OmegaConf reads these annotations: Optional and Union are the spellings that it knows.
Size = Union[int, float]  # a float is let through so that 1e3 can be taken as 1000


class ConfigError(ValueError):
    """A value that distbench cannot work with.

    The message is one line: key, value, what is allowed.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        shown = value.value if isinstance(value, Enum) else value
        super().__init__(f"{key}={shown}: {allowed}")
        self.key, self.shown, self.allowed = key, str(shown), allowed


class Lacking(ConfigError):
    """This machine lacks what the cell needs: in a sweep it is skipped, and the others go on."""


class Named(Enum):
    """An enum whose members print as they are written in YAML."""

    def __str__(self) -> str:
        return str(self.value)


class DType(Named):
    float64 = "float64"
    float32 = "float32"
    tf32 = "tf32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float8_e4m3fn = "float8_e4m3fn"
    float8_e5m2 = "float8_e5m2"
    int8 = "int8"
    complex64 = "complex64"
    complex128 = "complex128"
    mxfp8 = "mxfp8"
    nvfp4 = "nvfp4"


class Fill(Named):
    normal = "normal"
    uniform = "uniform"
    integer = "integer"
    zeros = "zeros"


class Layout(Named):
    auto = "auto"
    nn = "nn"
    nt = "nt"
    tn = "tn"
    tt = "tt"


class Scaling(Named):
    tensor = "tensor"
    row = "row"


class Upload(Named):
    none = "none"
    b = "b"
    ab = "ab"


class Split(Named):
    none = "none"
    batch = "batch"
    m = "m"
    n = "n"
    k = "k"


class CollectName(Named):
    none = "none"
    host = "host"
    gather = "gather"
    all_gather = "all_gather"
    reduce = "reduce"
    reduce_scatter = "reduce_scatter"
    all_reduce = "all_reduce"
    topk = "topk"


class Path(Named):
    auto = "auto"
    in_place = "in_place"
    collective = "collective"
    p2p = "p2p"
    shared = "shared"
    pinned = "pinned"
    fresh = "fresh"
    pageable = "pageable"
    pipelined = "pipelined"


class EngineName(Named):
    torch = "torch"
    numpy = "numpy"
    cupy = "cupy"


class Drive(Named):
    process = "process"
    loop = "loop"
    threads = "threads"


class Stream(Named):
    default = "default"
    own = "own"
    per_thread = "per_thread"


class Device(Named):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Backend(Named):
    auto = "auto"
    gloo = "gloo"
    nccl = "nccl"


class Profile(Named):
    none = "none"
    torch = "torch"


class Mode(Named):
    default = "default"
    burst = "burst"
    sustained = "sustained"


class Cache(Named):
    hot = "hot"
    cold = "cold"


class Start(Named):
    auto = "auto"
    window = "window"
    barrier = "barrier"


@dataclass
class Workload:
    """A problem: C[batch, m, n] = A[batch, m, k] · B[batch, k, n], with a dtype and a fill."""

    name: str = "custom"
    batch: Size = 1
    m: Size = 1024
    n: Size = 1024
    k: Size = 1024
    dtype: DType = DType.float32
    """The compute type. float32 is IEEE float32: tf32 is a dtype of its own."""
    fill: Fill = Fill.normal
    seed: int = 0
    upload: Upload = Upload.none
    """Operands that come from host memory within each sample."""
    layout: Layout = Layout.auto
    """How A and B are stored: n as written, t transposed. auto: nt for float8 and int8 (a GPU takes the first no
    other way, and the second slowly), else nn."""
    padding: int = 0
    """Elements between the rows of A and B as stored: their rows and batch entries are not contiguous."""
    scaling: Scaling = Scaling.tensor
    """float8's scales: one for each of A and B, or one for each row of A and column of B."""


@dataclass
class Measure:
    """How samples are taken, and when there are enough of them."""

    warmup: int = 3
    """Untimed runs of the timed path; the first is the verified one."""
    min_samples: int = 10
    """At most max_samples, whichever is smaller."""
    max_samples: int = 1000
    max_time_s: float = 10.0
    """Wins over min_samples once there is one sample."""
    target_rel_ci: float = 0.01
    """Stop when the half-width of the median's 95 % interval is at most this share of the median."""
    start: Start = Start.auto
    loop: int = 0
    """Runs of a plain loop after the samples, timed as a notebook would: cumulated, and without synchronising."""
    limits: bool = False
    """After the samples, measure what the query may run into: copies, its GEMM alone, its collective."""
    mode: Mode = Mode.default
    """burst: a rested device, short; sustained: a settled one, for min_time_s at least."""
    settle: bool = False
    """Before the samples, run until the clock and the span stand still."""
    settle_max_s: float = 30.0
    min_time_s: float = 0.0
    """No end before that, whatever min_samples and target_rel_ci say."""
    cache: Cache = Cache.hot
    """cold: before each sample, outside its window, twice the last-level cache is written."""
    graph: bool = False
    """The product as a CUDA graph."""
    inner: Union[int, str] = 1
    """Products per sample; auto: as many as fill five milliseconds. Times in the record are of one."""
    host_init: bool = False
    """Also time, once, A made by numpy's generator on the host and copied to the device; the fill then writes over it."""


@dataclass
class Guard:
    """From where on a result is doubted, or impossible. Judges results and changes none; not part of a cell's identity."""

    peak_ratio: float = 1.1
    """Impossible: a rate above so many times the datasheet's peak (stated at a clock that cards pass by up to 8 %)."""
    link_ratio: float = 1.02
    """Impossible: a copy above so many times its link's rate."""
    device_time_ratio: float = 1.01
    """Impossible: a device busy for more than so many times the span (its clock and the host's differ a little)."""
    idle: float = 0.02
    """Share of a span in which the GPU had no work, where nothing but the product is timed."""
    drift: float = 0.05
    """Change of the median span from the first third of the samples to the last."""
    mode_gap: float = 0.05
    """Distance of the two groups that samples fall into, as a share of the lower."""
    clock_spread: float = 0.03
    """How far the slowest rank's clock may be below the fastest's."""
    other_load: float = 0.05
    """Share of a rank's cores that other work took."""
    steal: float = 0.02
    """Share of its cores' time that the hypervisor gave to others."""
    throttled: float = 0.05
    """Share of the time that a clock or a quota was held down."""


@dataclass
class TopK:
    """collect=topk: the k best rows of C per column, with their indices."""

    k: int = 10
    chunk_rows: Optional[int] = None
    """Rows of C that are computed before they are searched; null: 500,000, or less where they need over 2 GB."""


@dataclass
class Pipeline:
    """path=pipelined: a chunk of C is copied to the host while the next is computed."""

    chunk_mib: Optional[float] = None
    """MiB of C per chunk; null: what the link carries in 3 ms, measured in the set-up."""


@dataclass
class Ceilings:
    """What the machine can do: measured by workload=ceilings, kept, and compared with by later cells."""

    measure: bool = False
    """Measure the ceilings too; beside the cell's own product."""
    budget_s: float = 60.0
    """About how long that may take."""
    folder: Optional[str] = None
    """Where they are kept; null: distbench/ceilings in $XDG_CACHE_HOME (~/.cache)."""


@dataclass
class Health:
    """Is a rank slower, later or wrong where all do the same work (experiment=health)? Judges and changes no result."""

    check: bool = False
    """After the samples, measure the links in rotating pairs, compare the ranks' results, and judge every rank."""
    slow: float = 0.1
    """A product that takes so much longer than the median of equal devices, …"""
    deviations: float = 5.0
    """… and lies so many deviations above it (1.4826 times the median absolute deviation)."""
    spread: float = 0.25
    """Where two ranks or two halves leave no majority: so much slower than the fastest."""
    stalls: float = 0.05
    """Share of the samples in which a rank took over twice the usual time."""
    late: float = 0.1
    """A start so much after the others', as a share of the span."""
    late_starts: float = 0.3
    """Share of the samples whose start a rank missed."""
    link: float = 0.5
    """A best link that takes so much longer than the median rank's."""
    ceiling: float = 0.8
    """A device, though it is as fast as the others of its kind: below this share of the measured ceiling."""
    link_mib: float = 8.0
    """MiB that go over a link and back."""
    rounds: int = 16
    """Rounds of pairs at most: all ranks meet all others in one less than there are ranks."""


@dataclass
class Peak:
    """experiment=peak: the search for the fastest shape; not part of a cell's identity."""

    search: bool = False
    """The cell is one of a search."""
    time_s: float = 60.0
    """Seconds for each dtype; no cell is begun that would not end in time."""
    largest: Optional[int] = None
    """The largest square; null: 2048 on a CPU, 16384 on a GPU, and what the memory holds."""


@dataclass
class Run:
    """How the run itself goes; not part of a cell's identity."""

    timeout_s: float = 60.0
    """Time without a heartbeat after which a rank counts as lost."""
    step_timeout_s: float = 1800.0
    """Time without progress of any rank after which a live world is ended."""
    resume: Optional[str] = None
    """The folder of a run to go on with, or its results.jsonl; only on the command line."""
    stop_on_failure: bool = False
    dry_run: bool = False
    """Print the plan; allocate nothing, measure nothing."""
    world: Optional[int] = None
    """World size to plan for; only with dry_run."""


@dataclass
class Config:
    """One cell, composed."""

    workload: Workload = field(default_factory=Workload)
    measure: Measure = field(default_factory=Measure)
    guard: Guard = field(default_factory=Guard)
    run: Run = field(default_factory=Run)
    split: Split = Split.m
    collect: CollectName = CollectName.none
    path: Path = Path.auto
    engine: EngineName = EngineName.torch
    drive: Drive = Drive.process
    device: Device = Device.auto
    backend: Backend = Backend.auto
    topk: TopK = field(default_factory=TopK)
    pipeline: Pipeline = field(default_factory=Pipeline)
    ceilings: Ceilings = field(default_factory=Ceilings)
    health: Health = field(default_factory=Health)
    peak: Peak = field(default_factory=Peak)
    devices: Optional[list[int]] = None
    """Devices by number: those that drive=loop and threads use, or those that this host's ranks take in turn."""
    shards_per_device: int = 1
    """Products into which a device's shard is cut, one after the other on a stream."""
    streams: int = 1
    """CUDA streams over which a device's shards are spread."""
    stream: Stream = Stream.default
    """default: the null stream; own: streams of their own; per_thread: CUDA's default stream of each thread."""
    profile: Profile = Profile.none
    """torch: a trace per rank and one of all, from a few samples after the measured ones."""
    threads: Optional[int] = None
    """CPU threads per device; null: the cores of the rank's mask ÷ the local ranks that share them."""


def cell_id(config: Config, world_size: int) -> str:
    """Twelve hex digits that name a cell: the composed configuration less what changes no result, and the world."""
    return identity(as_dict(config), world_size)


def identity(values: dict[str, Any], world_size: int) -> str:
    """`cell_id` of a configuration given as plain values."""
    told = {key: value for key, value in values.items() if key not in ("run", "guard", "peak")} | {"world": world_size}
    if isinstance(told.get("ceilings"), dict):  # where they are kept changes no cell
        told["ceilings"] = {key: value for key, value in told["ceilings"].items() if key != "folder"}
    if isinstance(told.get("health"), dict):  # thresholds change no cell
        told["health"] = {key: value for key, value in told["health"].items() if key == "check"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def as_dict(value: Any) -> Any:
    """Dataclasses and enums as plain JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key: as_dict(item) for key, item in asdict(value).items()}
    if isinstance(value, dict):
        return {key: as_dict(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    return value


def from_dict(values: dict[str, Any]) -> Config:
    """The Config that `as_dict` wrote: how a cell travels from rank 0 to the others. Raises ConfigError for other keys."""
    config = Config()
    _fill_in(config, values, "")
    return config


def _fill_in(target: Any, values: dict[str, Any], prefix: str) -> None:
    for key, value in values.items():
        current = getattr(target, key, None)
        if not hasattr(target, key):
            names = ", ".join(item.name for item in fields(target))
            raise ConfigError(f"{prefix}{key}", value, f"no such key; the keys here are {names}")
        if is_dataclass(current) and not isinstance(value, dict):
            raise ConfigError(
                f"{prefix}{key}", value, f"a group of keys: set {prefix}{key}.{fields(current)[0].name}, …"
            )
        if is_dataclass(current):
            _fill_in(current, value, f"{prefix}{key}.")
        else:
            setattr(target, key, type(current)(value) if isinstance(current, Enum) else value)


def keys_of(group: str) -> list[str]:
    """The names that can be set in a group ('' is the top level); empty for an unknown group."""
    target = Config() if not group else getattr(Config(), group, None)
    return [item.name for item in fields(target)] if is_dataclass(target) else []

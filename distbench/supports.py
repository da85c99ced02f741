"""Which dtypes a device computes, and in which shapes: checked for every shard before anything is allocated."""

from __future__ import annotations

from distbench.config import Config, ConfigError, Device, Lacking, Split
from distbench.dtypes import FACTS, NEEDS_BLACKWELL
from distbench.layout import extent
from distbench.operands import layout_of

# Per dtype on a GPU: (key, least size, multiple) of every rank's shard. Sources: the checks of torch._int_mm and
# torch._scaled_mm (aten/src/ATen/native/cuda/Blas.cpp), which repeat cuBLASLt's.
_INT8 = (("m", 17, 1), ("n", 8, 8), ("k", 8, 8))
_FLOAT8 = (("n", 16, 16), ("k", 16, 16))
_ALIGNED_PADDING = 16


class Unsupported(Lacking):
    """A dtype that the device lacks: the cell is skipped."""


def refuse_dtype(config: Config, device: Device, capability: tuple[int, int] | None) -> None:
    """What the device cannot compute at all. Raises Unsupported.

    capability: the least CUDA compute capability among the ranks; None where unknown or on a CPU.
    """
    dtype = config.workload.dtype
    if dtype in NEEDS_BLACKWELL:
        raise Unsupported(
            "workload.dtype",
            dtype,
            "only for GPUs of compute capability 10.0 (Blackwell), where distbench has not run it yet",
        )
    facts = FACTS[dtype]
    if device is Device.cpu and not facts.on_cpu:
        raise Unsupported("workload.dtype", dtype, "a CPU has no such unit: use float32, or device=cuda")
    if capability is not None and capability < facts.capability:
        least, here = (f"{major}.{minor}" for major, minor in (facts.capability, capability))
        raise Unsupported("workload.dtype", dtype, f"needs compute capability {least}, and the GPU here has {here}")


def refuse_shapes(config: Config, world_size: int, device: Device) -> None:
    """Shapes and layouts that a GPU's units for int8 and float8 cannot take, on any rank. Raises ConfigError."""
    w = config.workload
    facts = FACTS[w.dtype]
    if device is Device.cpu or not (facts.is_integer or facts.is_scaled):
        return
    if facts.is_scaled and layout_of(w).value != "nt":
        raise ConfigError(
            "workload.layout", w.layout, f"{w.dtype} on a GPU takes A by rows and B by columns only: nt or auto"
        )
    if w.padding % _ALIGNED_PADDING:
        nearest = -(-w.padding // _ALIGNED_PADDING) * _ALIGNED_PADDING
        raise ConfigError("workload.padding", w.padding, f"{w.dtype} on a GPU needs multiples of 16: {nearest} works")
    for axis, least, multiple in _INT8 if facts.is_integer else _FLOAT8:
        _check_axis(config, world_size, axis, least, multiple)


def _check_axis(config: Config, world_size: int, axis: str, least: int, multiple: int) -> None:
    w, size = config.workload, int(getattr(config.workload, axis))
    parts = world_size if config.split is Split(axis) else 1
    # Shards differ by one at most, the first being the largest; an empty one computes nothing.
    shards = {extent(size, parts, owner).size for owner in (0, parts - 1)} - {0}
    if all(shard >= least and shard % multiple == 0 for shard in shards):
        return
    step = multiple * parts
    nearest = max(least * parts, (size + step // 2) // step * step)
    needs = f"multiples of {multiple}" if multiple > 1 else f"{least} or more"
    where = f"on each of {parts} ranks" if parts > 1 else "on a GPU"
    raise ConfigError(f"workload.{axis}", size, f"{w.dtype} needs {needs} {where}: {nearest} works")

"""Numbers as a person reads them: decimal units, four significant digits."""

from __future__ import annotations


def seconds(value: float | None) -> str:
    """12.3 µs, 4.56 ms, 7.89 s."""
    if value is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value * 1e9:.3g} ns"


def rate(tflops: float | None) -> str:
    """TFLOP/s; GFLOP/s below one of them."""
    if tflops is None:
        return "-"
    return f"{tflops:.4g} TFLOP/s" if tflops >= 1 else f"{tflops * 1e3:.4g} GFLOP/s"


def size(count: float) -> str:
    """Bytes in decimal units."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:.0f} B"


def work(flop: float) -> str:
    """FLOP in decimal units."""
    for scale, unit in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if flop >= scale:
            return f"{flop / scale:.4g} {unit}"
    return f"{flop:.0f} FLOP"

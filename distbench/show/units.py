"""Numbers as a person reads them: decimal units, four significant digits."""

from __future__ import annotations

_Scales = tuple[tuple[float, str], ...]
_TIMES: _Scales = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_RATES: _Scales = ((1.0, "TFLOP/s"), (1e-3, "GFLOP/s"), (1e-6, "MFLOP/s"))
_SIZES: _Scales = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_WORK: _Scales = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1.0, "FLOP"))


def seconds(value: float | None) -> str:
    """12.3 µs, 4.56 ms, 7.89 s."""
    return "-" if value is None else _scaled(value, _TIMES)


def rate(tflops: float | None) -> str:
    """TFLOP/s; GFLOP/s below one of them."""
    return "-" if tflops is None else _scaled(tflops, _RATES)


def size(count: float) -> str:
    """Bytes in decimal units."""
    return _scaled(count, _SIZES)


def work(flop: float) -> str:
    """FLOP in decimal units."""
    return _scaled(flop, _WORK)


def _scaled(value: float, scales: _Scales) -> str:
    """In the largest unit of which there is at least one, else in the smallest."""
    scale, unit = next((pair for pair in scales if value >= pair[0]), scales[-1])
    number = value / scale
    return f"{number:.0f} {unit}" if number >= 9999.5 else f"{number:.4g} {unit}"  # never 1.2e+04

"""The elements of A and B: a function of (seed, operand, index) alone.

Every element is hashed from its place in the whole problem, so a shard has the same bits whatever the world, the split,
the engine and the device. Only integer arithmetic modulo 2**32 and exact floating-point steps are used, because
libm's log and cos differ between CPU and GPU in their last bits.

An element at (row, column) of an operand, rows counted through the batch:

    x = column ^ key0(row);  x ^= x >> 16;  x *= 0x7feb352d;  x += key1(row)
    x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16          (constants: the lowbias32 mixer, Chris Wellons, 2018)
    y = x * 0x9e3779b9

with keys from splitmix64 (Steele, Lea, Flood 2014) of seed, operand and row. A fill turns x and y into a value:

    normal   (sum of the 4 bytes of x - 510 + y / 2**32) / 128, y signed: mean 0, standard deviation 1.155
             (Irwin-Hall sum of four; float32 and narrower use the top 14 bits of y, so that the sum is exact)
    uniform  in [0, 1), all bits of the significand random
    integer  -3 … 3, whole: products are exact
    zeros    0

float64 has 42 random significand bits in normal, float32 and tf32 all 24; bfloat16, float16 and float8 are the float32
value rounded to nearest even. complex numbers have the real type's values as real parts, and as imaginary parts those of
a stream of their own. int8 is made of the float32 value v:

    normal   32·v rounded to nearest even, at most 127 in size
    uniform  128·v rounded down: 0 … 127
    integer  -3 … 3, the same
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from distbench.config import DType, Fill
from distbench.dtypes import FACTS, of_operand, storage
from distbench.layout import Extent

if TYPE_CHECKING:
    import torch

U32 = np.ndarray[Any, np.dtype[np.uint32]]
Floats = np.ndarray[Any, np.dtype[Any]]

_M1, _M2, _GOLDEN = 0x7FEB352D, 0x846CA68B, 0x9E3779B9
_CPU_CHUNK = 1 << 18  # elements: smaller ones make the threads queue for the interpreter, larger ones leave the cache
_CUDA_CHUNK = 1 << 24  # elements: 128 MB of 64-bit results in flight
OPERANDS = {"a": 0, "b": 1, "a imaginary": 2, "b imaginary": 3}
_INT8_UNIT = {Fill.normal: 32.0, Fill.uniform: 128.0, Fill.integer: 1.0}
_PART = {DType.complex64: DType.float32, DType.complex128: DType.float64}

MEAN_SQUARE: dict[Fill, float] = {
    Fill.normal: (4 * (256**2 - 1) / 12 + 1 / 12) / 128**2,
    Fill.uniform: 1 / 3,
    Fill.integer: 4.0,
    Fill.zeros: 0.0,
}
"""Mean of the squared elements per fill: the scale that verification measures errors on."""
_INT8_MEAN_SQUARE = {
    Fill.normal: 32**2 * MEAN_SQUARE[Fill.normal] + 1 / 12,
    Fill.uniform: 127 * 255 / 6,
}
LARGEST_INTEGER = 3


def mean_square(dtype: DType, fill: Fill) -> float:
    """Mean of the squared real numbers that a dtype's elements are made of."""
    return _INT8_MEAN_SQUARE.get(fill, MEAN_SQUARE[fill]) if dtype is DType.int8 else MEAN_SQUARE[fill]


def row_keys(seed: int, operand: str, rows: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[U32, U32]:
    """Two 32-bit keys per row id. Shape of each: that of `rows`."""
    with np.errstate(over="ignore"):
        mixed = _splitmix64(_splitmix64(_base(seed, operand)) + rows.astype(np.uint64))
    return (mixed >> np.uint64(32)).astype(np.uint32), (mixed & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def values_at(
    seed: int,
    operand: str,
    rows: np.ndarray[Any, np.dtype[np.int64]],
    columns: np.ndarray[Any, np.dtype[np.int64]],
    dtype: DType,
    fill: Fill,
) -> Floats:
    """Elements at rows × columns, rounded to `dtype`, as float64: recomputed from the index alone. Shape [rows, columns].

    Complex ones as complex128. Rows are ids through the batch: b·m + i for A[b, i, :], b·k + l for B[b, l, :].
    """
    dtype = of_operand(dtype, operand)
    if dtype in _PART:
        real, imaginary = (
            values_at(seed, name, rows, columns, _PART[dtype], fill) for name in (operand, f"{operand} imaginary")
        )
        return np.asarray(real + 1j * imaginary)
    out = np.empty((len(rows), len(columns)), dtype=np.float64)
    if fill is Fill.zeros:
        out.fill(0.0)
        return out
    work = np.float64 if dtype is DType.float64 else np.float32
    row_step = max(1, _CPU_CHUNK // max(1, len(columns)))
    for start in range(0, len(rows), row_step):
        key0, key1 = row_keys(seed, operand, rows[start : start + row_step])
        values = np.empty((len(key0), len(columns)), dtype=work)
        scratch = np.empty((2, len(key0), len(columns)), dtype=np.uint32)
        _numpy_values(columns.astype(np.uint32)[None, :], key0[:, None], key1[:, None], fill, values, scratch)
        if dtype is DType.int8:
            _to_int8(values, fill)
        out[start : start + row_step] = _rounded(values, dtype)
    return out


def fill_block(
    target: torch.Tensor,
    seed: int,
    operand: str,
    rows_per_batch: int,
    extent: tuple[Extent, Extent, Extent],
    dtype: DType,
    fill: Fill,
    threads: int = 1,
    progress: Callable[[float], None] = lambda share: None,
) -> None:
    """Write a block of A or B in place, on the tensor's own device.

    target: [batch, rows, columns], of the operand's dtype, of any strides. extent: where the block lies in the whole operand;
    rows_per_batch: rows of the whole operand per batch entry. threads: CPU threads; on CUDA the device does the work.
    progress: told the share done, from 0 to 1, on the calling thread.
    """
    batch, rows, columns = extent
    dtype = of_operand(dtype, operand)
    if target.numel() == 0 or fill is Fill.zeros:
        target.zero_()
        return
    if dtype in _PART:
        fill_block(target.real, seed, operand, rows_per_batch, extent, _PART[dtype], fill, threads, progress)
        fill_block(target.imag, seed, f"{operand} imaginary", rows_per_batch, extent, _PART[dtype], fill, threads)
        return
    if target.is_cuda:
        _fill_cuda(target, seed, operand, rows_per_batch, extent, dtype, fill)
        return
    is_one_run = batch.size == 1 or target.stride(0) == rows.size * target.stride(1)
    for flat, start in (
        [(target, batch.start)] if is_one_run else [(part, batch.start + i) for i, part in enumerate(target)]
    ):

        def ids(first: int, last: int, start: int = start) -> np.ndarray[Any, np.dtype[np.int64]]:
            entry, row = np.divmod(np.arange(first, last, dtype=np.int64), rows.size)
            return (start + entry) * rows_per_batch + rows.start + row

        _fill_cpu(flat.view(-1, columns.size), ids, columns, seed, operand, dtype, fill, threads, progress)


def _base(seed: int, operand: str) -> np.uint64:
    with np.errstate(over="ignore"):
        return np.uint64(_splitmix64(np.uint64(seed)) + np.uint64(OPERANDS[operand]))


def _splitmix64(x: Any) -> Any:
    with np.errstate(over="ignore"):
        z = x + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _numpy_values(columns: U32, key0: U32, key1: U32, fill: Fill, out: Floats, scratch: U32) -> None:
    """Values for columns [1, c] and keys [r, 1] into out [r, c] (float64 or float32). scratch: [2, r, c]."""
    x, t = scratch
    np.bitwise_xor(columns, key0, out=x)
    np.right_shift(x, np.uint32(16), out=t)
    np.bitwise_xor(x, t, out=x)
    np.multiply(x, np.uint32(_M1), out=x)
    np.add(x, key1, out=x)
    np.right_shift(x, np.uint32(15), out=t)
    np.bitwise_xor(x, t, out=x)
    np.multiply(x, np.uint32(_M2), out=x)
    np.right_shift(x, np.uint32(16), out=t)
    np.bitwise_xor(x, t, out=x)
    if fill is Fill.normal:
        _numpy_normal(x, t, out)
    elif fill is Fill.uniform:
        _numpy_uniform(x, t, out)
    else:
        np.right_shift(x, np.uint32(16), out=x)
        np.multiply(x, np.uint32(7), out=x)
        np.right_shift(x, np.uint32(16), out=x)
        np.subtract(x.view(np.int32), LARGEST_INTEGER, out=out, casting="unsafe")


def _numpy_normal(x: U32, t: U32, out: Floats) -> None:
    pairs = np.uint32(0x00FF00FF)
    np.right_shift(x, np.uint32(8), out=t)
    np.bitwise_and(t, pairs, out=t)
    np.add(t, np.bitwise_and(x, pairs), out=t)
    np.multiply(x, np.uint32(_GOLDEN), out=x)  # x is y from here
    y = x.view(np.int32)
    if out.dtype == np.float64:
        np.multiply(y, 2.0**-32, out=out)
    else:
        np.right_shift(y, 18, out=y)
        np.multiply(y, np.float32(2.0**-14), out=out, casting="unsafe")
    np.right_shift(t, np.uint32(16), out=x)
    np.bitwise_and(t, np.uint32(0xFFFF), out=t)
    np.add(t, x, out=t)
    np.subtract(t.view(np.int32), 510, out=t.view(np.int32))
    np.add(out, t.view(np.int32), out=out, casting="unsafe")
    np.multiply(out, out.dtype.type(2.0**-7), out=out)


def _numpy_uniform(x: U32, t: U32, out: Floats) -> None:
    if out.dtype == np.float64:
        np.multiply(x, np.uint32(_GOLDEN), out=t)
        np.right_shift(t, np.uint32(11), out=t)
        np.multiply(x, 2.0**-32, out=out)
        np.add(out, t * 2.0**-53, out=out)
    else:
        np.right_shift(x, np.uint32(8), out=x)
        np.multiply(x, np.float32(2.0**-24), out=out, casting="unsafe")


def _rounded(values: Floats, dtype: DType) -> Floats:
    """float32 or float64 values as they are once stored in `dtype`."""
    if FACTS[dtype].in_numpy or dtype is DType.tf32:
        return values.astype(FACTS[dtype].name)
    import torch

    rounded: Floats = torch.from_numpy(values).to(storage(dtype)).double().numpy()
    return rounded


def _to_int8(values: Floats, fill: Fill) -> None:
    """float32 values of a fill become int8's, whole, in place."""
    np.multiply(values, np.float32(_INT8_UNIT[fill]), out=values)
    (np.rint if fill is Fill.normal else np.floor)(values, out=values)
    np.minimum(values, np.float32(127), out=values)


def _fill_cpu(
    flat: torch.Tensor,
    ids: Callable[[int, int], np.ndarray[Any, np.dtype[np.int64]]],
    columns: Extent,
    seed: int,
    operand: str,
    dtype: DType,
    fill: Fill,
    threads: int,
    progress: Callable[[float], None],
) -> None:
    import torch

    work = np.float64 if dtype is DType.float64 else np.float32
    direct = flat.numpy() if flat.dtype in (torch.float64, torch.float32) else None
    column_step = min(columns.size, _CPU_CHUNK)
    row_step = max(1, _CPU_CHUNK // column_step)
    column_ids = np.arange(columns.start, columns.stop, dtype=np.int64).astype(np.uint32)[None, :]

    def fill_rows(first: int, last: int) -> None:
        scratch = np.empty((2, row_step, column_step), dtype=np.uint32)
        rounded = np.empty((row_step, column_step), dtype=work)
        for top in range(first, last, row_step):
            bottom = min(top + row_step, last)
            key0, key1 = (key[:, None] for key in row_keys(seed, operand, ids(top, bottom)))
            for left in range(0, columns.size, column_step):
                right = min(left + column_step, columns.size)
                part = (slice(0, bottom - top), slice(0, right - left))
                values = rounded[part] if direct is None else direct[top:bottom, left:right]
                pad = scratch[(slice(None), *part)]
                _numpy_values(column_ids[:, left:right], key0, key1, fill, values, pad)
                if dtype is DType.int8:
                    _to_int8(values, fill)
                if direct is None:
                    flat[top:bottom, left:right].copy_(torch.from_numpy(values))

    # Pieces much smaller than a thread's share keep progress moving and the threads evenly loaded.
    piece = max(row_step, -(-len(flat) // (threads * 16)))
    starts = range(0, len(flat), piece)
    with ThreadPoolExecutor(threads) as pool:
        done = pool.map(lambda first: fill_rows(first, min(first + piece, len(flat))), starts)
        for count, _ in enumerate(done, 1):
            progress(count / len(starts))


_CUDA_SOURCE = """
template <typename T> T element(T row, T column, T base) {{
  unsigned long long z = (unsigned long long)base + (unsigned long long)row;
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  unsigned int x = (unsigned int)column ^ (unsigned int)(z >> 32);
  x ^= x >> 16;
  x *= 0x7feb352du;
  x += (unsigned int)z;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  unsigned int y = x * 0x9e3779b9u;
  return (T)__double_as_longlong({value});
}}
"""
_CUDA_SUM = "(double)((int)((x & 255u) + (x >> 8 & 255u) + (x >> 16 & 255u) + (x >> 24)) - 510)"
_CUDA_INTEGER = "(double)(int)((x >> 16) * 7u >> 16) - 3.0"
_CUDA_NORMAL = f"({_CUDA_SUM} + (double)((int)y >> 18) * 0x1p-14)"
_CUDA_VALUE: dict[tuple[Fill, str], str] = {
    (Fill.normal, "float64"): f"({_CUDA_SUM} + (double)(int)y * 0x1p-32) * 0x1p-7",
    (Fill.normal, "float32"): f"{_CUDA_NORMAL} * 0x1p-7",
    (Fill.normal, "int8"): f"fmin(rint({_CUDA_NORMAL} * 0x1p-2), 127.0)",
    (Fill.uniform, "float64"): "(double)x * 0x1p-32 + (double)(y >> 11) * 0x1p-53",
    (Fill.uniform, "float32"): "(double)(x >> 8) * 0x1p-24",
    (Fill.uniform, "int8"): "(double)(x >> 25)",
    (Fill.integer, "float64"): _CUDA_INTEGER,
    (Fill.integer, "float32"): _CUDA_INTEGER,
    (Fill.integer, "int8"): _CUDA_INTEGER,
}
"""Per (fill, kind of value): the value as an exact double; narrower types round it once, in the copy."""


def _fill_cuda(
    target: torch.Tensor,
    seed: int,
    operand: str,
    rows_per_batch: int,
    extent: tuple[Extent, Extent, Extent],
    dtype: DType,
    fill: Fill,
) -> None:
    """One kernel a chunk, compiled when first used; every step in it is exact, so contraction to FMA changes nothing."""
    import torch

    batch, rows, columns = extent
    device = target.device
    kernel = _cuda_kernel(fill, str(dtype) if dtype in (DType.float64, DType.int8) else "float32")
    base = int(_splitmix64(_base(seed, operand)))
    base_there = torch.tensor([base - 2**64 if base >= 2**63 else base], dtype=torch.int64, device=device)
    column_ids = torch.arange(columns.start, columns.stop, device=device)[None, :]
    step = max(1, _CUDA_CHUNK // columns.size)
    for entry in range(batch.size):
        first = (batch.start + entry) * rows_per_batch + rows.start
        for top in range(0, rows.size, step):
            bottom = min(top + step, rows.size)
            row_ids = torch.arange(first + top, first + bottom, device=device)[:, None]
            target[entry, top:bottom].copy_(kernel(row_ids, column_ids, base_there).view(torch.float64))


@cache
def _cuda_kernel(fill: Fill, kind: str) -> Callable[..., torch.Tensor]:
    import torch

    create: Any = torch.cuda.jiterator._create_jit_fn
    kernel: Callable[..., torch.Tensor] = create(_CUDA_SOURCE.format(value=_CUDA_VALUE[fill, kind]))
    return kernel

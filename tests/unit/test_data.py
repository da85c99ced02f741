"""The fill: pinned bits, independent of where a block is cut and who fills it, and the statistics that it claims."""

from __future__ import annotations

import itertools
from math import sqrt

import numpy as np
import pytest
import torch

from distbench.config import DType, Fill, Layout, Scaling, Workload
from distbench.data import LARGEST_INTEGER, MEAN_SQUARE, fill_block, mean_square, values_at
from distbench.dtypes import FACTS, poison, storage, wide
from distbench.layout import Block, Extent, whole
from distbench.operands import allocate, scale_up, scales, stored

REAL = [dtype for dtype, facts in FACTS.items() if facts.components == 1]
RANDOM_FILLS = [Fill.normal, Fill.uniform, Fill.integer]
MASK32, MASK64 = 2**32 - 1, 2**64 - 1

# Elements of A at seed 7: rows 0, 1, 2, 1000, 2**33 and columns 0, 1, 5, 2**20, 2**32 - 1, pairwise.
ROWS, COLUMNS = [0, 1, 2, 1000, 2**33], [0, 1, 5, 2**20, 2**32 - 1]
GOLDEN = {
    (
        DType.float64,
        Fill.normal,
    ): "0x1.88897981d2p+0 -0x1.3e84971184p-1 0x1.28567316dp-3 -0x1.5a37e633a8p-2 0x1.b977af71d4p-1",
    (
        DType.float64,
        Fill.uniform,
    ): "0x1.bfb4b16289798p-1 0x1.2e3560baf6d1cp-3 0x1.7385fd56159ccp-2 0x1.48ff7d8ee40cep-2 0x1.fb5cd3abbd7b0p-5",
    (DType.float32, Fill.normal): "0x1.888978p+0 -0x1.3e84ap-1 0x1.28564p-3 -0x1.5a38p-2 0x1.b977ap-1",
    (DType.float32, Fill.uniform): "0x1.bfb4bp-1 0x1.2e356p-3 0x1.7385fcp-2 0x1.48ff7cp-2 0x1.fb5ccp-5",
    (DType.bfloat16, Fill.normal): "0x1.88p+0 -0x1.3ep-1 0x1.28p-3 -0x1.5ap-2 0x1.bap-1",
    (DType.bfloat16, Fill.uniform): "0x1.cp-1 0x1.2ep-3 0x1.74p-2 0x1.48p-2 0x1.fcp-5",
    (DType.float16, Fill.normal): "0x1.888p+0 -0x1.3e8p-1 0x1.284p-3 -0x1.5a4p-2 0x1.b98p-1",
    (DType.float16, Fill.uniform): "0x1.bfcp-1 0x1.2e4p-3 0x1.738p-2 0x1.49p-2 0x1.fb4p-5",
    (DType.tf32, Fill.normal): "0x1.888978p+0 -0x1.3e84ap-1 0x1.28564p-3 -0x1.5a38p-2 0x1.b977ap-1",
    (DType.tf32, Fill.uniform): "0x1.bfb4bp-1 0x1.2e356p-3 0x1.7385fcp-2 0x1.48ff7cp-2 0x1.fb5ccp-5",
    (DType.float8_e4m3fn, Fill.normal): "0x1.80000p+0 -0x1.40000p-1 0x1.20000p-3 -0x1.60000p-2 0x1.c0000p-1",
    (DType.float8_e4m3fn, Fill.uniform): "0x1.c0000p-1 0x1.20000p-3 0x1.80000p-2 0x1.40000p-2 0x1p-4",
    (DType.float8_e5m2, Fill.normal): "0x1.80000p+0 -0x1.40000p-1 0x1.40000p-3 -0x1.40000p-2 0x1.c0000p-1",
    (DType.float8_e5m2, Fill.uniform): "0x1.c0000p-1 0x1.40000p-3 0x1.80000p-2 0x1.40000p-2 0x1p-4",
    (DType.int8, Fill.normal): "0x1.88000p+5 -0x1.40000p+4 0x1.40000p+2 -0x1.60000p+3 0x1.c0000p+4",
    (DType.int8, Fill.uniform): "0x1.bc000p+6 0x1.20000p+4 0x1.70000p+5 0x1.48000p+5 0x1.c0000p+2",
    **{(dtype, Fill.integer): "0x1.8p+1 -0x1p+1 -0x1p+0 -0x1p+0 -0x1.8p+1" for dtype in REAL},
    **{(dtype, Fill.zeros): "0x0p+0 0x0p+0 0x0p+0 0x0p+0 0x0p+0" for dtype in REAL},
}


def at(
    rows: list[int] | range, columns: list[int] | range, dtype: DType, fill: Fill, seed: int = 7, operand: str = "a"
) -> np.ndarray:
    return values_at(seed, operand, np.array(rows, np.int64), np.array(columns, np.int64), dtype, fill)


def filled(
    extent: tuple[Extent, Extent, Extent],
    rows_per_batch: int,
    dtype: DType,
    fill: Fill,
    threads: int = 1,
) -> torch.Tensor:
    """A block of A at seed 7; poisoned first, so that what is not written shows."""
    shape = [part.size for part in extent]
    target = torch.empty(shape, dtype=storage(dtype))
    poison(target)
    fill_block(target, 7, "a", rows_per_batch, extent, dtype, fill, threads)
    return target


@pytest.mark.parametrize(("dtype", "fill"), list(itertools.product(REAL, Fill)), ids=str)
def test_the_pinned_elements_are_what_they_were(dtype: DType, fill: Fill) -> None:
    """A change here makes old results incomparable with new ones: it should be meant."""
    expected = [float.fromhex(text) for text in GOLDEN[dtype, fill].split()]
    assert at(ROWS, COLUMNS, dtype, fill).diagonal().tolist() == expected


def splitmix64(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def by_the_book(row: int, column: int, dtype: DType, fill: Fill, seed: int, operand: int) -> float:
    """The module's own description, one element at a time in Python's integers."""
    keys = splitmix64((splitmix64((splitmix64(seed) + operand) & MASK64) + row) & MASK64)
    x = (column & MASK32) ^ (keys >> 32)
    x ^= x >> 16
    x = (x * 0x7FEB352D + (keys & MASK32)) & MASK32
    x ^= x >> 15
    x = (x * 0x846CA68B) & MASK32
    x ^= x >> 16
    y = (x * 0x9E3779B9) & MASK32
    if fill is Fill.integer:
        return ((x >> 16) * 7 >> 16) - 3
    if fill is Fill.uniform:
        return x / 2**32 + (y >> 11) / 2**53 if dtype is DType.float64 else (x >> 8) / 2**24
    signed = y - 2**32 if y >= 2**31 else y
    fraction = signed / 2**32 if dtype is DType.float64 else (signed >> 18) / 2**14
    return (sum(x.to_bytes(4, "little")) - 510 + fraction) / 128


@pytest.mark.parametrize(
    ("dtype", "fill"), list(itertools.product((DType.float64, DType.float32), RANDOM_FILLS)), ids=str
)
def test_every_element_is_what_the_description_says(dtype: DType, fill: Fill) -> None:
    rows, columns = [0, 1, 77, 2**31, 2**40], [0, 1, 99, 2**31, 2**32 + 5]
    for seed, (number, operand) in itertools.product((0, 1, 2**63 - 1), enumerate("ab")):
        expected = [[by_the_book(row, column, dtype, fill, seed, number) for column in columns] for row in rows]
        assert at(rows, columns, dtype, fill, seed, operand).tolist() == expected


BLOCKS = [
    (Extent(0, 3), Extent(0, 10), Extent(0, 50)),
    (Extent(1, 3), Extent(4, 9), Extent(13, 50)),
    (Extent(2, 3), Extent(9, 10), Extent(49, 50)),
    (Extent(0, 2), Extent(3, 3), Extent(0, 50)),
    (Extent(2**20, 2**20 + 2), Extent(3, 5), Extent(2**31 - 3, 2**31 + 3)),
]


@pytest.mark.parametrize(("dtype", "fill"), list(itertools.product(FACTS, Fill)), ids=str)
def test_a_block_has_the_bits_of_its_place_wherever_it_is_cut(dtype: DType, fill: Fill) -> None:
    for batch, rows, columns in BLOCKS:
        block = filled((batch, rows, columns), 10, dtype, fill)
        ids = [b * 10 + row for b in range(batch.start, batch.stop) for row in range(rows.start, rows.stop)]
        expected = at(ids, range(columns.start, columns.stop), dtype, fill)
        assert wide(block).numpy().reshape(expected.shape).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [DType.float64, DType.bfloat16], ids=str)
def test_threads_and_chunks_do_not_change_the_bits(dtype: DType) -> None:
    """More elements than one chunk, in both directions."""
    for rows, columns in ((700, 900), (2, 300_000)):
        extent = (Extent(0, 1), Extent(0, rows), Extent(0, columns))
        alone = filled(extent, rows, dtype, Fill.normal, threads=1)
        assert not alone.isnan().any()
        for threads in (2, 5):
            assert torch.equal(filled(extent, rows, dtype, Fill.normal, threads), alone)


def test_many_rows_at_once_are_the_rows_one_by_one() -> None:
    """values_at works in chunks too."""
    whole = at(range(600), range(1000), DType.float32, Fill.normal)
    for row in (0, 261, 262, 263, 599):
        assert whole[row].tolist() == at([row], range(1000), DType.float32, Fill.normal)[0].tolist()


def test_filling_tells_its_progress_up_to_all_of_it() -> None:
    target = torch.empty(1, 2000, 1000)
    told: list[float] = []
    extent = (Extent(0, 1), Extent(0, 2000), Extent(0, 1000))
    fill_block(target, 0, "a", 2000, extent, DType.float32, Fill.normal, 2, told.append)
    assert len(told) > 4
    assert told == sorted(told)
    assert told[-1] == 1.0


SIDE = 512
SAMPLES = SIDE * SIDE


@pytest.fixture(scope="module", params=RANDOM_FILLS, ids=str)
def sample(request: pytest.FixtureRequest) -> tuple[Fill, np.ndarray]:
    return request.param, at(range(SIDE), range(SIDE), DType.float64, request.param, seed=0)


def standardised(fill: Fill, values: np.ndarray) -> np.ndarray:
    mean = 0.5 if fill is Fill.uniform else 0.0
    return (values - mean) / sqrt(MEAN_SQUARE[fill] - mean**2)


def test_mean_and_mean_square_are_the_ones_that_verification_counts_on(sample: tuple[Fill, np.ndarray]) -> None:
    fill, values = sample
    z = standardised(fill, values)
    assert abs(z.mean()) < 5 / sqrt(SAMPLES)
    assert (values**2).mean() == pytest.approx(MEAN_SQUARE[fill], rel=0.02)
    assert abs((z**2).mean() - 1) < 5 * (z**2).std() / sqrt(SAMPLES)


@pytest.mark.parametrize("dtype", [d for d in REAL if d is not DType.float64], ids=str)
def test_narrower_types_have_the_same_mean_square(dtype: DType) -> None:
    for fill in RANDOM_FILLS:
        values = at(range(SIDE), range(SIDE), dtype, fill)
        assert (values**2).mean() == pytest.approx(mean_square(dtype, fill), rel=0.02)


def test_neighbouring_rows_and_columns_are_uncorrelated(sample: tuple[Fill, np.ndarray]) -> None:
    z = standardised(*sample)
    for lag in (1, 2, 3, 16, 128, 256):
        assert abs((z[:, lag:] * z[:, :-lag]).mean()) < 5 / sqrt(z[:, lag:].size), f"columns {lag} apart"
        assert abs((z[lag:] * z[:-lag]).mean()) < 5 / sqrt(z[lag:].size), f"rows {lag} apart"
        assert abs((z[lag:, lag:] * z[:-lag, :-lag]).mean()) < 5 / sqrt(z[lag:, lag:].size), f"diagonal {lag}"


def test_no_row_or_column_stands_out(sample: tuple[Fill, np.ndarray]) -> None:
    z = standardised(*sample)
    for axis in (0, 1):
        assert np.abs(z.mean(axis=axis)).max() * sqrt(SIDE) < 5.5
        assert len(np.unique(z, axis=axis)) == SIDE  # no two rows (columns) are equal


def test_seeds_and_operands_give_unrelated_matrices(sample: tuple[Fill, np.ndarray]) -> None:
    fill, _ = sample
    z = standardised(*sample)
    for seed, operand in ((1, "a"), (2, "a"), (2**62, "a"), (0, "b"), (1, "b")):
        other = standardised(fill, at(range(SIDE), range(SIDE), DType.float64, fill, seed, operand))
        assert abs((z * other).mean()) < 5 / sqrt(SAMPLES), (seed, operand)
        assert abs((z * other.T).mean()) < 5 / sqrt(SAMPLES), (seed, operand)


def test_integers_are_whole_all_of_them_occur_and_none_is_larger_than_promised() -> None:
    values, counts = np.unique(at(range(SIDE), range(SIDE), DType.bfloat16, Fill.integer), return_counts=True)
    assert values.tolist() == list(range(-LARGEST_INTEGER, LARGEST_INTEGER + 1))
    assert (abs(counts / SAMPLES - 1 / 7) < 0.005).all()


def test_uniform_stays_between_0_and_1_and_reaches_both_ends() -> None:
    values = at(range(SIDE), range(SIDE), DType.float32, Fill.uniform)
    assert 0 <= values.min() < 1e-4
    assert 1 - 1e-4 < values.max() < 1


def test_zeros_are_zeros_even_where_the_memory_was_not() -> None:
    block = filled((Extent(0, 2), Extent(0, 3), Extent(0, 5)), 3, DType.float16, Fill.zeros)
    assert block.count_nonzero() == 0


def test_a_stored_element_is_the_float32_one_rounded_to_nearest_even() -> None:
    wide = torch.from_numpy(at(range(64), range(64), DType.float32, Fill.normal)).float()
    for dtype in (DType.bfloat16, DType.float16, DType.float8_e4m3fn, DType.float8_e5m2):
        stored = at(range(64), range(64), dtype, Fill.normal)
        assert torch.equal(torch.from_numpy(stored), wide.to(getattr(torch, str(dtype))).double())


@pytest.mark.parametrize(("dtype", "part"), [(DType.complex64, DType.float32), (DType.complex128, DType.float64)])
def test_complex_elements_are_two_unrelated_real_ones(dtype: DType, part: DType) -> None:
    for fill in RANDOM_FILLS:
        values = at(range(SIDE), range(SIDE), dtype, fill)
        assert values.real.tolist() == at(range(SIDE), range(SIDE), part, fill).tolist()
        real, imaginary = standardised(fill, values.real), standardised(fill, values.imag)
        assert abs((real * imaginary).mean()) < 5 / sqrt(SAMPLES)
        assert abs((imaginary**2).mean() - 1) < 0.02


def test_int8_elements_are_whole_unbiased_and_within_127() -> None:
    wide_values = at(range(SIDE), range(SIDE), DType.float32, Fill.normal)
    values = at(range(SIDE), range(SIDE), DType.int8, Fill.normal)
    assert values.tolist() == np.minimum(np.rint(wide_values * 32), 127).tolist()
    assert -127 <= values.min() < -100 < 100 < values.max() <= 127
    uniform = at(range(SIDE), range(SIDE), DType.int8, Fill.uniform)
    assert np.unique(uniform).tolist() == list(range(128))


@pytest.mark.parametrize("dtype", [DType.float64, DType.bfloat16, DType.int8, DType.complex64], ids=str)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_a_transposed_or_padded_block_has_the_values_of_its_logical_place(dtype: DType, layout: str) -> None:
    block = whole(3, 70, 50, 90)
    for padding in (0, 5):
        workload = Workload("test", 3, 70, 50, 90, dtype, layout=Layout(layout), padding=padding)
        a, _ = allocate(block, workload, torch.device("cpu"))
        assert a.shape == (3, 70, 90)
        assert stored(a).is_contiguous()
        assert stored(a).shape == ((3, 70, 90 + padding) if layout == "nn" else (3, 90, 70 + padding))
        poison(stored(a))
        fill_block(a, 7, "a", 70, (block.batch, block.m, block.k), dtype, Fill.normal, threads=2)
        plain = filled((block.batch, block.m, block.k), 70, dtype, Fill.normal)
        assert torch.equal(a, plain)


@pytest.mark.parametrize("scaling", list(Scaling), ids=str)
def test_scaled_operands_times_their_scales_are_the_filled_values_exactly(scaling: Scaling) -> None:
    for dtype, fill in itertools.product((DType.float8_e4m3fn, DType.float8_e5m2), RANDOM_FILLS):
        workload = Workload("test", 2, 40, 30, 50, dtype, fill, scaling=scaling)
        block = Block(Extent(0, 2), Extent(7, 40), Extent(3, 30), Extent(0, 50))
        a, b = allocate(block, workload, torch.device("cpu"))
        fill_block(a, 7, "a", 40, (block.batch, block.m, block.k), dtype, fill)
        fill_block(b, 7, "b", 50, (block.batch, block.k, block.n), dtype, fill)
        assert b.dtype is torch.float8_e4m3fn  # beside either: cuBLAS multiplies no two float8_e5m2 matrices
        assert np.array_equal(b[0].double().numpy(), values_at(7, "b", np.arange(50), np.arange(3, 30), dtype, fill))
        before = a.float(), b.float()
        scale_up((a, b), block, workload)
        scale_a, scale_b = scales(block, workload, a.device)
        assert torch.equal(a.float() * scale_a, before[0])
        assert torch.equal(b.float() * scale_b, before[1])
        if scaling is Scaling.row:
            assert len(scale_a.unique()) == len(scale_b.unique()) == 4
            whole_a, _ = scales(whole(2, 40, 30, 50), workload, a.device)
            assert torch.equal(whole_a[7:], scale_a)  # a row has its scale wherever the block is cut

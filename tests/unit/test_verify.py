"""Verification: every right product passes, every wrong one is caught. Shards of several ranks, in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch

from distbench import verify
from distbench.collects.base import Site
from distbench.config import CollectName, DType, EngineName, Fill, Scaling, Split, Workload
from distbench.data import fill_block
from distbench.dtypes import FACTS, poison, result, wide
from distbench.engines import ENGINES, torch_engine
from distbench.layout import Block, whole
from distbench.operands import allocate, scale_up, scales

WORLD = 3
LARGE_K = 16384
SUMMED = (CollectName.reduce, CollectName.all_reduce, CollectName.reduce_scatter)


@dataclass(frozen=True)
class Case:
    """A problem as WORLD ranks compute it; hashable, so that each product is made once."""

    dtype: DType
    k: int
    fill: Fill = Fill.normal
    split: Split = Split.m
    collect: CollectName = CollectName.gather
    batch: int = 1
    m: int = 33
    n: int = 30
    seed: int = 0
    world: int = WORLD
    engine: EngineName = EngineName.torch

    @property
    def workload(self) -> Workload:
        return Workload("test", self.batch, self.m, self.n, self.k, self.dtype, self.fill, self.seed)

    def site(self, rank: int) -> Site:
        return Site(whole(self.batch, self.m, self.n, self.k), self.split, self.collect, self.world, rank)


@dataclass(eq=False)
class Product:
    """What the ranks hold once the collect is done, and what verification expects of it."""

    case: Case
    shards: list[torch.Tensor]
    """Per rank: its product, before the collect."""
    parts: list[torch.Tensor]
    """Per rank: its share of A·(B·x)."""
    x: torch.Tensor

    @cache  # noqa: B019 (a product lives as long as the tests)
    def held(self, rank: int) -> tuple[torch.Tensor | None, torch.Tensor]:
        """(what the rank holds, its expected C·x), as the cell makes them."""
        site = self.case.site(rank)
        if site.held is None:
            return None, self.parts[rank]
        if verify.is_local(site):
            return self.shards[rank], self.parts[rank]
        c = torch.empty((self.case.batch, self.case.m, self.case.n), dtype=self.shards[0].dtype)
        poison(c)
        if self.case.collect in SUMMED:
            c = torch.zeros_like(c)
            for shard in self.shards:
                c += shard
        else:
            for other, shard in enumerate(self.shards):
                c[site.shard_at(other).c_index] = shard
        total = torch.stack([verify.placed(part, self.case.site(r)) for r, part in enumerate(self.parts)]).sum(0)
        return c[site.held.c_index].clone(), total[site.held.batch.slice, site.held.m.slice]

    def verdict(self, rank: int, spoil: Callable[[torch.Tensor], object] = lambda held: None) -> verify.Verdict:
        """What verification says of what a rank holds, after `spoil` was at it."""
        held, expected = self.held(rank)
        site = self.case.site(rank)
        assert held is not None
        assert site.held is not None
        held = held.clone()
        spoil(held)
        return verify.check(held, site.held, expected, self.x, self.case.workload, site)


def operands(case: Case, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    w = case.workload
    a, b = allocate(block, w, torch.device("cpu"))
    fill_block(a, w.seed, "a", case.m, (block.batch, block.m, block.k), w.dtype, w.fill)
    fill_block(b, w.seed, "b", case.k, (block.batch, block.k, block.n), w.dtype, w.fill)
    scale_up((a, b), block, w)
    return a, b


def multiply(engine: Any, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, block: Block, w: Workload) -> None:
    """c = a · b; tf32 as a GPU might at its worst: operands cut to 10 bits after the point, sums in float32."""
    if FACTS[w.dtype].is_scaled:
        engine.prepare_scaled(a, b, c, *scales(block, w, c.device))()
    elif w.dtype is DType.tf32:
        cut = [(part.view(torch.int32) & ~0x1FFF).view(torch.float32) for part in (a, b)]
        torch.bmm(*cut, out=c)
    else:
        engine.prepare(a, b, c)()


@cache
def product(case: Case) -> Product:
    """The ranks' real products, by the engine."""
    w = case.workload
    engine = ENGINES[case.engine]
    engine.settings()
    x = verify.random_x(case.seed, case.n)
    shards, parts = [], []
    for rank in range(case.world):
        site = case.site(rank)
        shard = site.shard
        a, b = operands(case, shard)
        c = torch.zeros(shard.c_shape, dtype=result(case.dtype))
        if c.numel() and shard.k.size:
            multiply(engine, a, b, c, shard, w)
        shards.append(c)
        parts.append(verify.expected_part(a, b, site, x, w))
    return Product(case, shards, parts, x)


@cache
def assert_right(case: Case) -> None:
    holders = [rank for rank in range(case.world) if product(case).held(rank)[0] is not None]
    assert holders
    for rank in holders:
        verdict = product(case).verdict(rank)
        assert verdict.ok, (case, rank, verdict)
        assert verdict.detail == ""


def assert_caught(case: Case, spoil: Callable[[torch.Tensor], object]) -> verify.Verdict:
    assert_right(case)  # so that it is the spoiling that is caught
    spoiled = product(case).verdict(0, spoil)
    assert not spoiled.ok, (case, spoiled)
    assert spoiled.detail
    return spoiled


# --- right products pass ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "k"), list(itertools.product(FACTS, (1, 2, 64, LARGE_K))), ids=str)
def test_a_right_product_passes_whatever_the_fill(dtype: DType, k: int) -> None:
    for fill in (Fill.normal, Fill.uniform, Fill.integer, Fill.zeros):
        for seed in (0, 1) if k < LARGE_K else (0,):
            assert_right(Case(dtype, k, fill, seed=seed))


@pytest.mark.parametrize(("dtype", "k"), list(itertools.product(FACTS, (1, 2, 64, LARGE_K))), ids=str)
def test_a_right_sum_over_ranks_passes_whatever_the_fill(dtype: DType, k: int) -> None:
    """Sums of rounded partial products; at k = 1 and 2 some ranks have no terms at all."""
    for fill in (Fill.normal, Fill.uniform, Fill.integer):
        assert_right(Case(dtype, k, fill, Split.k, CollectName.all_reduce))


PAIRS = [
    (split, collect)
    for split, collects in {
        Split.none: "none host",
        Split.batch: "none host gather all_gather",
        Split.m: "none host gather all_gather",
        Split.n: "none host gather all_gather",
        Split.k: "none reduce reduce_scatter all_reduce",
    }.items()
    for collect in map(CollectName, collects.split())
]


@pytest.mark.parametrize(("split", "collect"), PAIRS, ids=str)
def test_a_right_product_passes_however_it_is_split_and_collected(split: Split, collect: CollectName) -> None:
    for world, dtype in itertools.product((1, 3, 5), (DType.float64, DType.bfloat16)):
        assert_right(Case(dtype, 40, split=split, collect=collect, batch=4, m=13, n=11, world=world))


@pytest.mark.parametrize("engine", [EngineName.torch, EngineName.numpy], ids=str)
def test_a_right_product_of_each_engine_passes(engine: EngineName) -> None:
    numpys = [dtype for dtype, facts in FACTS.items() if facts.in_numpy]
    assert len(numpys) == 5
    for dtype, batch in itertools.product(numpys, (1, 3)):
        assert_right(Case(dtype, 300, engine=engine, batch=batch, m=20, n=20))


def test_more_ranks_than_rows_pass_with_empty_shards() -> None:
    for split in (Split.m, Split.n, Split.k, Split.batch):
        assert_right(Case(DType.float32, 2, split=split, collect=CollectName.none, batch=2, m=2, n=2, world=6))


def test_integers_are_compared_exactly() -> None:
    verdict = product(Case(DType.float32, 64, Fill.integer)).verdict(0)
    assert (verdict.max_error, verdict.tolerance, verdict.product_error, verdict.product_tolerance) == (0, 0, 0, 0)


@pytest.mark.parametrize(("dtype", "k"), list(itertools.product(FACTS, (64, LARGE_K))), ids=str)
def test_a_right_product_is_far_from_the_limit_of_the_whole_product(dtype: DType, k: int) -> None:
    """A limit that right products come near to would refuse one in a long sweep."""
    for split, collect in ((Split.m, CollectName.gather), (Split.k, CollectName.all_reduce)):
        verdict = product(Case(dtype, k, split=split, collect=collect)).verdict(0)
        assert verdict.product_error < 0.5 * verdict.product_tolerance or verdict.product_error == 0


# --- wrong products are caught ---------------------------------------------------------------------------------------

LARGE = (300, 310)  # rows and columns: most of the entries are not among those that are sampled


def large(dtype: DType, k: int = LARGE_K, fill: Fill = Fill.normal) -> Case:
    return Case(dtype, k, fill, m=LARGE[0], n=LARGE[1])


def scaled_entry(place: tuple[int, int], factor: float) -> Callable[[torch.Tensor], object]:
    def spoil(held: torch.Tensor) -> None:
        value = wide(held[(0, *place)]) * factor
        held[(0, *place)] = value if held.is_floating_point() or held.is_complex() else value.round()

    return spoil


def typical_entries(case: Case, count: int) -> list[tuple[int, int]]:
    """Places all over C where an entry is neither small nor large for its kind."""
    c = product(case).held(0)[0]
    assert c is not None
    size = wide(c[0]).abs()
    places = ((size > 0.9 * size.median()) & (size < 1.1 * size.median())).nonzero()
    chosen = places[:: max(1, len(places) // count)][:count]
    return [(int(row), int(column)) for row, column in chosen]


@pytest.mark.parametrize(
    ("dtype", "share"),
    [
        (DType.float64, 0.05),
        (DType.float32, 0.05),
        (DType.float16, 0.2),
        (DType.bfloat16, 0.6),
        (DType.complex64, 0.05),
        (DType.complex128, 0.05),
        (DType.tf32, 0.4),
        (DType.float8_e4m3fn, 0.8),
        (DType.int8, 0.05),
    ],
    ids=str,
)
@pytest.mark.parametrize("k", [1, 64, 2048])
def test_one_entry_that_is_off_is_caught_wherever_it_is(dtype: DType, share: float, k: int) -> None:
    """The 16-bit types' own rounding hides a smaller error in the sum of a row, unless the entry is sampled (below)."""
    fill = Fill.uniform if k == 1 else Fill.normal  # a product of two normal numbers is often next to nothing
    case = Case(dtype, k, fill, m=100, n=40)
    for place in typical_entries(case, 12):
        assert_caught(case, scaled_entry(place, 1 + share))


@pytest.mark.parametrize("dtype", FACTS, ids=str)
def test_one_sampled_entry_off_by_5_percent_is_caught_at_any_k(dtype: DType) -> None:
    """bfloat16 rounds by 0.4 %: among hundreds of entries only the sampled ones can show this. Shards' corners always."""
    for k in (1, 64, LARGE_K):
        case = Case(dtype, k)
        c = product(case).held(0)[0]
        assert c is not None
        for row in (0, 10, 11, 32):  # first and last rows of shards
            column = int(c[0, row].abs()[[0, -1]].argmax()) * (case.n - 1)
            assert_caught(case, scaled_entry((row, column), 1.05))


@pytest.mark.parametrize("dtype", FACTS, ids=str)
def test_a_small_block_is_compared_entry_by_entry(dtype: DType) -> None:
    case = Case(dtype, 2048, collect=CollectName.none, m=36, n=12)  # 12 × 12 a rank
    for place in typical_entries(case, 8):
        assert_caught(case, scaled_entry((place[0], place[1]), 1.05))


@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16], ids=str)
def test_one_shard_off_by_1_percent_is_caught(dtype: DType) -> None:
    case = large(dtype)
    for rank in range(WORLD):
        rows = case.site(rank).shard.m.slice
        assert_caught(case, lambda held, rows=rows: held[:, rows].mul_(1.01))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e4], ids=str)
@pytest.mark.parametrize("dtype", FACTS, ids=str)
def test_one_entry_that_is_no_number_or_absurd_is_caught_wherever_it_is(dtype: DType, value: float) -> None:
    if FACTS[dtype].is_integer:
        value = torch.iinfo(torch.int32).min if value != value else min(max(value, -(2.0**31) + 1), 2.0**31 - 1)
    case = large(dtype, 64)
    for place in ((0, 309), (57, 77), (101, 155), (150, 230), (299, 1)):

        def spoil(held: torch.Tensor, place: tuple[int, int] = place) -> None:
            held[(0, *place)] = value

        assert_caught(case, spoil)


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_an_entry_that_is_no_number_is_told_by_its_place_and_as_an_infinite_error(value: float) -> None:
    def spoil(held: torch.Tensor) -> None:
        held[0, 3, 5] = value

    verdict = assert_caught(Case(DType.float32, 8, collect=CollectName.none, m=36, n=12), spoil)
    assert f"C[0, 3, 5] is {value} and should be " in verdict.detail
    assert "row 3 of batch entry 0" in verdict.detail
    assert (verdict.max_error, verdict.product_error) == (float("inf"), float("inf"))


def test_an_absurd_entry_cannot_raise_its_own_limit() -> None:
    """The limit grows with what is found: entries so large that its squares overflow must not pass."""

    def spoil(held: torch.Tensor) -> None:
        held[0, 101, 77] = 1e200

    assert_caught(large(DType.float64, 64), spoil)
    summed = Case(DType.bfloat16, 64, split=Split.k, collect=CollectName.all_reduce, m=100, n=100, world=40)
    assert_caught(summed, scaled_entry((51, 51), 1e6))


@pytest.mark.parametrize("dtype", FACTS, ids=str)
@pytest.mark.parametrize("fill", [Fill.normal, Fill.uniform, Fill.integer], ids=str)
def test_a_block_that_nobody_wrote_is_caught(dtype: DType, fill: Fill) -> None:
    case = Case(dtype, 64, fill)
    for rank in range(WORLD):
        block = case.site(rank).shard.c_index
        assert_caught(case, lambda held, block=block: poison(held[block]))  # the poison
        assert_caught(case, lambda held, block=block: held[block].zero_())  # a fresh mapping


@pytest.mark.parametrize("dtype", FACTS, ids=str)
def test_two_shards_in_each_others_place_are_caught(dtype: DType) -> None:
    for split, fill in itertools.product((Split.m, Split.n), (Fill.normal, Fill.uniform, Fill.integer)):
        case = Case(dtype, 64, fill, split)
        one, two = (case.site(rank).shard.c_index for rank in (0, 2))

        def swap(held: torch.Tensor, one: object = one, two: object = two) -> None:
            kept = held[one].clone()  # type: ignore[index]
            held[one] = held[two]  # type: ignore[index]
            held[two] = kept  # type: ignore[index]

        assert_caught(case, swap)


@pytest.mark.parametrize("dtype", FACTS, ids=str)
@pytest.mark.parametrize("fill", [Fill.normal, Fill.uniform, Fill.integer], ids=str)
def test_a_transposed_result_is_caught(dtype: DType, fill: Fill) -> None:
    assert_caught(Case(dtype, 64, fill, m=33, n=33), lambda held: held.copy_(held.mT.clone()))


@pytest.mark.parametrize("dtype", FACTS, ids=str)
def test_a_single_non_zero_among_zeros_is_caught_wherever_it_is(dtype: DType) -> None:
    case = large(dtype, 64, Fill.zeros)
    for place in ((0, 309), (57, 77), (101, 155), (299, 1)):

        def spoil(held: torch.Tensor, place: tuple[int, int] = place) -> None:
            held[(0, *place)] = 1 if FACTS[dtype].is_integer else 1e-6

        assert_caught(case, spoil)


def without_last_term(case: Case) -> Callable[[torch.Tensor], object]:
    """The same product of one term less."""

    def spoil(held: torch.Tensor) -> None:
        block = whole(case.batch, case.m, case.n, case.k)
        a, b = operands(case, block)
        c = torch.empty(block.c_shape, dtype=held.dtype)
        multiply(ENGINES[EngineName.torch], a[:, :, :-1], b[:, :-1], c, block, case.workload)
        held.copy_(c)

    return spoil


@pytest.mark.parametrize("dtype", FACTS, ids=str)
@pytest.mark.parametrize("k", [2, 64, LARGE_K])
def test_a_product_that_lacks_one_term_of_k_is_caught(dtype: DType, k: int) -> None:
    for fill in (Fill.normal, Fill.integer):
        case = Case(dtype, k, fill)
        assert_caught(case, without_last_term(case))


@pytest.mark.parametrize(("dtype", "k"), [(DType.float64, LARGE_K), (DType.float32, 64), (DType.float16, 64)], ids=str)
def test_a_term_of_a_positive_sum_is_missed_where_the_dtype_can_show_it(dtype: DType, k: int) -> None:
    """uniform sums reach k/4, so that a term of 16384 is less than what float32 may lose."""
    case = Case(dtype, k, Fill.uniform)
    assert_caught(case, without_last_term(case))


@pytest.mark.parametrize("dtype", FACTS, ids=str)
def test_a_sum_that_lacks_a_ranks_part_or_has_it_twice_is_caught(dtype: DType) -> None:
    case = Case(dtype, 64, split=Split.k, collect=CollectName.all_reduce)
    for rank in range(WORLD):
        part = product(case).shards[rank]
        assert_caught(case, lambda held, part=part: held.sub_(part))
        assert_caught(case, lambda held, part=part: held.add_(part))


def test_a_batch_entry_in_anothers_place_is_caught() -> None:
    case = Case(DType.float32, 64, split=Split.batch, batch=6)
    assert_caught(case, lambda held: held.copy_(held[[0, 1, 3, 2, 4, 5]].clone()))


def test_the_product_of_another_seed_is_caught() -> None:
    other = product(Case(DType.float32, 64, seed=1)).held(0)[0]
    assert other is not None
    assert_caught(Case(DType.float32, 64), lambda held: held.copy_(other))


def test_operands_that_were_not_filled_as_the_seed_says_are_caught_though_their_product_is_right() -> None:
    """C·x agrees with A·(B·x) for any A and B in memory: the entries tie them to the seed."""
    case = Case(DType.float64, 64, collect=CollectName.none)
    right, other = product(case), product(Case(DType.float64, 64, collect=CollectName.none, seed=1))
    site = case.site(0)
    assert site.held is not None
    x = right.x
    expected = other.shards[0][0] @ x
    verdict = verify.check(other.shards[0], site.held, expected[None], x, case.workload, site)
    assert not verdict.ok
    assert verdict.product_error < verdict.product_tolerance


# --- what is told ----------------------------------------------------------------------------------------------------


def test_a_wrong_entry_is_told_by_its_place_in_the_whole_of_c() -> None:
    case = Case(DType.float64, 8, collect=CollectName.none, m=36, n=12)
    site = case.site(2)
    held, expected = product(case).held(2)
    assert held is not None
    assert site.held is not None
    spoiled = held.clone()
    spoiled[0, 5, 7] = 1e3
    verdict = verify.check(spoiled, site.held, expected, product(case).x, case.workload, site)
    assert f"C[0, {24 + 5}, 7] is 1000 and should be " in verdict.detail
    assert f"row {24 + 5} of batch entry 0" in verdict.detail


def test_one_ranks_failure_is_the_verdict_of_all_and_names_the_rank() -> None:
    right = asdict(verify.Verdict(True, 0.1, 1.0, 0.2, 1.0))
    wrong = asdict(verify.Verdict(False, 5.0, 1.0, 0.3, 1.0, "C[0, 1, 2] is off"))
    told = verify.combined([right, None, wrong])
    assert not told["ok"]
    assert told["reason"] == "rank 2: C[0, 1, 2] is off"
    assert (told["max_error"], told["product_error"], told["ranks_checked"]) == (5.0, 0.3, 2)
    assert verify.combined([right, None])["ok"]


def test_nothing_checked_is_not_right() -> None:
    assert not verify.combined([None, None])["ok"]


def test_an_error_that_was_not_finite_is_told_as_unknown_and_not_as_small() -> None:
    infinite = asdict(verify.Verdict(False, 5.0, 1.0, 0.3, 1.0, "off")) | {"max_error": None}  # as the record has it
    assert verify.combined([infinite, asdict(verify.Verdict(True, 0.0, 1.0, 0.0, 1.0))])["max_error"] is None


def test_the_random_vector_hides_no_column_and_no_exchange_and_is_the_same_on_every_rank() -> None:
    x = verify.random_x(3, 1000)
    assert (x.abs() >= 0.5).all()
    assert (x.abs() < 1).all()
    assert len(set(x.tolist())) > 500
    assert abs(float(x.square().mean().sqrt()) - verify._X_RMS) < 0.02
    assert abs(x.mean()) < 0.1
    assert torch.equal(x, verify.random_x(3, 1000))
    assert not torch.equal(x, verify.random_x(4, 1000))


@pytest.mark.parametrize("dtype", FACTS, ids=str)
def test_a_ranks_own_product_off_by_1_percent_is_caught_before_it_hides_in_the_sum(dtype: DType) -> None:
    """float8: by 3 percent, since its units keep 14 bits of a sum."""
    off = 1.03 if FACTS[dtype].block_roundoff else 1.01
    case = Case(dtype, LARGE_K, split=Split.k, collect=CollectName.all_reduce)
    made = product(case)
    for rank in range(WORLD):
        site, shard, part = case.site(rank), made.shards[rank], made.parts[rank]
        assert verify.check(shard, site.shard, part, made.x, case.workload, site, own=True).ok
        assert not verify.check(
            (wide(shard) * off).to(shard.dtype), site.shard, part, made.x, case.workload, site, own=True
        ).ok


def test_one_bit_of_one_int8_product_is_caught_wherever_it_is() -> None:
    for k, fill in ((64, Fill.normal), (LARGE_K, Fill.uniform)):
        case = large(DType.int8, k, fill)
        for place in ((0, 309), (57, 77), (101, 155), (299, 1)):

            def spoil(held: torch.Tensor, place: tuple[int, int] = place) -> None:
                held[(0, *place)] ^= 1

            assert_caught(case, spoil)


@pytest.mark.parametrize("dtype", [DType.complex64, DType.complex128], ids=str)
def test_a_wrong_imaginary_part_alone_is_caught(dtype: DType) -> None:
    case = large(dtype, 64)
    assert_caught(case, lambda held: held.copy_(held.conj().clone()))
    assert_caught(case, lambda held: held[0, 57, 77].add_(3j))
    assert_caught(case, lambda held: held[0, :, 5].mul_(1j))


@pytest.mark.parametrize("dtype", FACTS, ids=str)
def test_two_exchanged_columns_are_caught(dtype: DType) -> None:
    case = large(dtype, 64)
    order = [*range(100), 200, *range(101, 200), 100, *range(201, LARGE[1])]
    assert_caught(case, lambda held: held.copy_(held[:, :, order].clone()))


@pytest.mark.parametrize("dtype", [DType.float8_e4m3fn, DType.float8_e5m2], ids=str)
@pytest.mark.parametrize("scaling", Scaling, ids=str)
def test_a_float8_product_without_its_scales_is_caught(dtype: DType, scaling: Scaling) -> None:
    case = Case(dtype, 64, collect=CollectName.none, world=1)
    w, block, site = replace(case.workload, scaling=scaling), whole(1, case.m, case.n, case.k), case.site(0)
    a, b = allocate(block, w, torch.device("cpu"))
    fill_block(a, 0, "a", case.m, (block.batch, block.m, block.k), dtype, w.fill)
    fill_block(b, 0, "b", case.k, (block.batch, block.k, block.n), dtype, w.fill)
    scale_up((a, b), block, w)
    c = torch.empty(block.c_shape, dtype=torch.bfloat16)
    x = verify.random_x(0, case.n)
    expected = verify.expected_part(a, b, site, x, w)
    right = scales(block, w, c.device)
    for scale_a, scale_b, ok in ((*right, True), (right[0] * 2, right[1], False), (right[0], right[1].roll(1), None)):
        torch_engine.prepare_scaled(a, b, c, scale_a, scale_b)()
        verdict = verify.check(c, block, expected, x, w, site)
        assert verdict.ok == ((scaling is Scaling.tensor) if ok is None else ok)  # one scale rolls onto itself

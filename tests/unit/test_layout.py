"""Shards: they cover the problem exactly, differ by at most one, and are exact at any size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from distbench.config import CollectName, Split
from distbench.layout import Extent, extent, held_by, shard_of, whole

WORLDS = range(1, 10)
SIZES = [*range(1, 21), 63, 64, 65, 1000, 1023]


@pytest.mark.parametrize("world", WORLDS)
def test_the_parts_cover_an_axis_in_order_without_gap_or_overlap(world: int) -> None:
    for size in SIZES:
        parts = [extent(size, world, owner) for owner in range(world)]
        assert [index for part in parts for index in range(part.start, part.stop)] == list(range(size))


@pytest.mark.parametrize("world", WORLDS)
def test_the_parts_differ_by_at_most_one_and_the_first_are_the_larger(world: int) -> None:
    for size in SIZES:
        sizes = [extent(size, world, owner).size for owner in range(world)]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)  # Site.largest_shard relies on it


def test_more_ranks_than_rows_leave_the_last_with_nothing() -> None:
    assert [extent(2, 4, owner).size for owner in range(4)] == [1, 1, 0, 0]


@pytest.mark.parametrize("world", [1, 3, 4096])
def test_parts_of_a_trillion_are_exact_integers(world: int) -> None:
    size = 10**12 + 7
    parts = [extent(size, world, owner) for owner in range(world)]
    assert sum(part.size for part in parts) == size
    assert (parts[0].start, parts[-1].stop) == (0, size)
    assert all(after.start == before.stop for before, after in itertools.pairwise(parts))
    assert all(type(part.start) is int and type(part.stop) is int for part in parts)


def c_counts(split: Split, world: int) -> np.ndarray:
    """How many ranks compute each element of a C[4, 5, 7]."""
    problem = whole(4, 5, 7, 6)
    counts = np.zeros(problem.c_shape, dtype=int)
    for rank in range(world):
        counts[shard_of(problem, split, world, rank).c_index] += 1
    return counts


@pytest.mark.parametrize("split", [Split.batch, Split.m, Split.n], ids=str)
def test_a_split_of_c_computes_every_element_exactly_once(split: Split) -> None:
    for world in WORLDS:
        assert (c_counts(split, world) == 1).all(), world


@pytest.mark.parametrize("split", [Split.none, Split.k])
def test_the_other_splits_have_all_of_c_on_every_rank(split: Split) -> None:
    assert (c_counts(split, 3) == 3).all()


@pytest.mark.parametrize("split", Split, ids=str)
def test_the_ranks_flop_add_up_to_the_problems(split: Split) -> None:
    problem = whole(4, 5, 7, 6)
    assert problem.flop == 2 * 4 * 5 * 7 * 6
    for world in WORLDS:
        total = sum(shard_of(problem, split, world, rank).flop for rank in range(world))
        assert total == problem.flop * (world if split is Split.none else 1), world


def test_the_shapes_of_a_block_are_batch_first_and_rows_before_columns() -> None:
    block = whole(2, 3, 5, 7)
    assert (block.a_shape, block.b_shape, block.c_shape) == ((2, 3, 7), (2, 7, 5), (2, 3, 5))
    assert block.sizes() == {"batch": 2, "m": 3, "n": 5, "k": 7}
    assert Extent(2, 5).slice == slice(2, 5)


def test_what_is_gathered_or_reduced_lies_whole_on_rank_0_alone() -> None:
    problem = whole(1, 10, 4, 6)
    for split, collect in ((Split.m, CollectName.gather), (Split.k, CollectName.reduce)):
        assert [held_by(problem, split, collect, 3, rank) for rank in range(3)] == [problem, None, None]


def test_what_is_all_gathered_or_all_reduced_lies_whole_on_every_rank() -> None:
    problem = whole(1, 10, 4, 6)
    for split, collect in ((Split.n, CollectName.all_gather), (Split.k, CollectName.all_reduce)):
        assert all(held_by(problem, split, collect, 3, rank) == problem for rank in range(3))


def test_reduce_scatter_leaves_each_rank_its_rows_of_the_whole_sum() -> None:
    problem = whole(2, 10, 4, 6)
    held = [held_by(problem, Split.k, CollectName.reduce_scatter, 3, rank) for rank in range(3)]
    assert [block.m for block in held if block] == [Extent(0, 4), Extent(4, 7), Extent(7, 10)]
    assert all(block and block.k == problem.k for block in held)


def test_what_is_not_collected_stays_a_ranks_own_terms_of_k_included() -> None:
    problem = whole(1, 10, 4, 6)
    for split in Split:
        for rank in range(3):
            assert held_by(problem, split, CollectName.none, 3, rank) == shard_of(problem, split, 3, rank)

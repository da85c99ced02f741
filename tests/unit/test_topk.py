"""The selection of top-k, chunk by chunk, against a stable sort of the whole product."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distbench.collects import topk
from distbench.config import CollectName, Config, Split
from distbench.layout import Block, Extent

K, N = 4, 5


def made(m: int, start: int, chunk: int | None, dtype: torch.dtype = torch.float64) -> topk.TopK:
    config = Config(split=Split.m, collect=CollectName.topk)
    config.topk.k, config.topk.chunk_rows = K, chunk
    block = Block(Extent(0, 1), Extent(start, start + m), Extent(0, N), Extent(0, 1))
    site: Any = SimpleNamespace(problem=block, shard=block, world_size=1, rank=0)
    means: Any = SimpleNamespace(
        config=config, dtype=dtype, device=torch.device("cpu"), empty=lambda *sizes: torch.empty(*sizes, dtype=dtype)
    )
    return topk.TopK(site, means)


def selected(collect: topk.TopK, product: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for index, (_, rows, _) in enumerate(collect.pieces()):
        collect.target((slice(None), rows, slice(None))).copy_(product[None, rows])
        collect.after(index)
    collect.run()
    return collect.values, collect.indices


def by_sorting(product: torch.Tensor, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, rows = product.T.sort(dim=1, descending=True, stable=True)
    return values[:, :K], rows[:, :K] + start


@pytest.mark.parametrize("chunk", [None, 4, 5, 7, 64, 1000])
@pytest.mark.parametrize("m", [4, 5, 63, 64, 65, 500])
@pytest.mark.parametrize("levels", [1, 2, 7, 10**6])
def test_every_chunking_selects_what_a_stable_sort_of_all_does(m: int, chunk: int | None, levels: int) -> None:
    product = torch.randint(-levels, levels, (m, N), generator=torch.Generator().manual_seed(m + levels)).double()
    collect = made(m, 11, chunk)
    for _ in range(2):  # a second sample finds nothing of the first
        values, rows = selected(collect, product)
        expected_values, expected_rows = by_sorting(product, 11)
        assert torch.equal(values, expected_values)
        assert torch.equal(rows, expected_rows)
        product = -product


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_scores_of_narrow_dtypes_are_equal_often_and_ties_go_by_row(dtype: torch.dtype) -> None:
    product = torch.randn(400, N, generator=torch.Generator().manual_seed(1)).to(dtype)
    values, rows = selected(made(400, 0, 37, dtype), product)
    expected_values, expected_rows = by_sorting(product, 0)
    assert torch.equal(values, expected_values)
    assert torch.equal(rows, expected_rows)


def test_a_chunk_is_a_third_of_the_shard_at_most() -> None:
    assert made(300, 0, None).rows == 100
    assert made(301, 0, None).rows == 101
    assert len(made(301, 0, None).starts) == 3


@pytest.mark.parametrize(
    ("rows", "k", "block"), [(10**6, 10, 1000), (10**6, 100, 100), (50, 10, 5), (5, 10, 1), (10**6, 10**5, 1)]
)
def test_blocks_leave_few_candidates(rows: int, k: int, block: int) -> None:
    assert topk.block_rows(rows, k) == block

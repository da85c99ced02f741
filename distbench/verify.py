"""Is the product right? Checked before any time is kept, at any size, for much less than the product costs.

Two checks of what each rank holds after the collect:

entries   Entries at sampled rows × columns, the first and last of every shard among them, against a float64 reference
          whose operands are recomputed from (seed, index) alone.
products  Every entry at once: with random x, C·x must equal A·(B·x) (Freivalds, 1979), both in float64. It reads
          each operand once. The operands are those in memory; the entries check ties them to the seed.

An entry's error is allowed to be

    u_out·|c| + λ·(u_sum·√k + u_in + u_block·√min(k, 128) + u_out·√p·[p partial sums])·P,   P = max(|c|, σ_A·σ_B·√k)

with the unit roundoffs of C and of the sums, of tf32's operands and of float8's sums within blocks (see dtypes), k
terms, the fill's root mean squares σ, and P the size that partial sums reach. √k instead of k is the probabilistic bound of
Higham and Mary (SIAM J. Sci. Comput. 41, 2019); λ = 8. A row of C·x adds its n entries' allowances in squares, since the
entries of x are independent. A complex entry has 2k real terms in each part, and the error of either part counts.
Comparisons are written so that NaN and inf fail. The allowance is 0 for int8, and where every partial sum is a whole number
that the dtype holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from distbench.collects.base import Site
from distbench.config import CollectName, Fill, Workload
from distbench.data import LARGEST_INTEGER, mean_square, values_at
from distbench.dtypes import FACTS, DTypeFacts, wide
from distbench.layout import Block
from distbench.operands import scales
from distbench.plan import fill_is_exact
from distbench.rules import LARGEST

if TYPE_CHECKING:
    import torch

_LAMBDA = 8.0
_BLOCK = 128  # terms that float8's matrix units sum before float32 takes over
_ROWS, _COLUMNS = 24, 24
_SHARD_EDGES = 64  # shards whose first and last rows are sampled for certain
_CHUNK = 1 << 23  # elements converted to float64 at a time: 64 MB
_TERMS = 1 << 16  # terms of k that the reference adds up at a time

METHOD = "sampled entries against a float64 reference; random product of all entries (Freivalds)"
_X_BITS = 10
_X_RMS = sqrt(7 / 12)  # of x's entries, which are uniform in size
_SUMMED = (CollectName.reduce, CollectName.reduce_scatter, CollectName.all_reduce)


@dataclass(frozen=True)
class Verdict:
    """One rank's finding. Errors are relative to P, see above; tolerance likewise."""

    ok: bool
    max_error: float
    """Largest error of a sampled entry; inf where an entry is not finite."""
    tolerance: float
    product_error: float
    """Largest error of a row of C·x, relative to √n·P of that row."""
    product_tolerance: float
    detail: str = ""


@dataclass(frozen=True)
class Allowance:
    """The coefficients of the error bound."""

    out: float
    """Of |c|: the rounding of the result itself."""
    sums: float
    """Of P: the rounding of partial sums."""
    scale: float
    """σ_A·σ_B·√k."""
    reference: float = 0.0
    """Of the float64 arithmetic of the product check, relative to √n·P; 0 where that is exact."""


def allowance(workload: Workload, k: int, n: int, summed_over: int) -> Allowance:
    """The bound for entries of k terms, added up over `summed_over` ranks in the result's own dtype (1: not at all).

    n: the entries of a row of C.
    """
    facts: DTypeFacts = FACTS[workload.dtype]
    terms = k * facts.components
    scale = mean_square(workload.dtype, workload.fill) * sqrt(terms)
    reference = _LAMBDA * 2.0**-53 * sqrt(n + k)  # it rounds too, and sums over n, which only that check does
    if facts.is_integer:
        largest = terms * n * LARGEST[workload.fill] ** 2 * 2**_X_BITS
        return Allowance(0.0, 0.0, scale, 0.0 if largest <= 2**53 else reference)
    if fill_is_exact(workload.fill, terms, facts.significand_bits, LARGEST_INTEGER):
        return Allowance(0.0, 0.0, scale)
    growth = _LAMBDA * sqrt(terms)
    if (
        workload.fill is Fill.uniform
    ):  # terms of one sign: roundings of a growing sum lean one way, seen in torch's float32
        growth = max(growth, terms / 16)
    sums = facts.accumulate_roundoff * growth
    sums += _LAMBDA * (facts.operand_roundoff + facts.block_roundoff * sqrt(min(terms, _BLOCK)))
    if summed_over > 1:
        sums += _LAMBDA * facts.unit_roundoff * sqrt(summed_over)
    return Allowance(facts.unit_roundoff, sums, scale, reference)


def random_x(seed: int, n: int) -> torch.Tensor:
    """The vector x, float64 [n], of either sign and between 1/2 and 1 in size; the same on every rank.

    Ten bits each, so that whole-numbered products stay exact; many values, so that exchanged columns show; none small, so
    that no column's error is scaled away.
    """
    import torch

    rng = np.random.default_rng([seed, n])
    return torch.from_numpy(rng.integers(512, 1024, n) / 1024.0 * rng.choice([-1.0, 1.0], n))


def expected_part(
    a: torch.Tensor, b: torch.Tensor, site: Site, x: torch.Tensor, workload: Workload | None = None
) -> torch.Tensor:
    """This rank's share of A·(B·x) from the operands in its memory, [batch, m] of its shard, on the CPU.

    float64, complex128 for complex operands. workload: what the scales of float8 operands are taken from.
    """
    own_x = x[site.shard.n.slice].to(a.device)
    if workload is None or not FACTS[workload.dtype].is_scaled:
        return _times(a, _times(b, own_x.expand(b.shape[0], -1))).cpu()
    scale_a, scale_b = (scale.double().flatten() for scale in scales(site.shard, workload, a.device))
    return (scale_a * _times(a, _times(b, (scale_b * own_x).expand(b.shape[0], -1)))).cpu()


def is_local(site: Site) -> bool:
    """True if what a rank holds is its own product, so that its own share of A·(B·x) is what it must equal."""
    return site.collect in (CollectName.none, CollectName.host)


def placed(part: torch.Tensor, site: Site) -> torch.Tensor:
    """A rank's share in a [batch, m] of the whole problem, zeros elsewhere: the sum over ranks is A·(B·x)."""
    import torch

    total = torch.zeros(site.problem.batch.size, site.problem.m.size, dtype=part.dtype)
    total[site.shard.batch.slice, site.shard.m.slice] = part
    return total


def check(
    held: torch.Tensor,
    held_block: Block,
    expected: torch.Tensor,
    x: torch.Tensor,
    workload: Workload,
    site: Site,
    own: bool = False,
) -> Verdict:
    """Both checks of what this rank holds.

    held: [batch, m, n] of held_block; expected: A·(B·x) for its rows, float64 [batch, m], on the CPU; x: from `random_x`.
    own: held is this rank's product before any sum over ranks, and is held to that tighter bound.
    """
    if held.numel() == 0:
        return Verdict(True, 0.0, 0.0, 0.0, 0.0)
    summed_over = site.world_size if site.collect in _SUMMED and not own else 1
    allowed = allowance(workload, held_block.k.size, held_block.n.size, summed_over)
    entry_error, entry_tolerance, where = _check_entries(held, held_block, workload, site, allowed)
    product_error, product_tolerance, row = _check_products(held, held_block, expected, x[held_block.n.slice], allowed)
    return Verdict(
        ok=not where and not row,
        max_error=entry_error,
        tolerance=entry_tolerance,
        product_error=product_error,
        product_tolerance=product_tolerance,
        detail="; ".join(text for text in (where, row) if text),
    )


def worst_of(verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Several findings of one rank as one."""
    told = [verdict["detail"] for verdict in verdicts if verdict["detail"]]
    figures = ("max_error", "tolerance", "product_error", "product_tolerance")
    return {
        "ok": all(verdict["ok"] for verdict in verdicts),
        **{key: max((verdict[key] for verdict in verdicts), default=0.0) for key in figures},
        "detail": "; ".join(told[:2]),
    }


def combined(verdicts: list[dict[str, Any] | None]) -> dict[str, Any]:
    """The record's verification from the ranks' findings (None: a rank that holds nothing)."""
    told = [(rank, verdict) for rank, verdict in enumerate(verdicts) if verdict is not None]
    wrong = [f"rank {rank}: {verdict['detail']}" for rank, verdict in told if not verdict["ok"]]

    def worst(key: str) -> float | None:
        values = [verdict[key] for _, verdict in told]
        return None if None in values else max(values, default=0.0)

    return {
        "ok": bool(told) and not wrong,
        "method": METHOD,
        "max_error": worst("max_error"),
        "tolerance": worst("tolerance"),
        "product_error": worst("product_error"),
        "product_tolerance": worst("product_tolerance"),
        "ranks_checked": len(told),
        "wrong_ranks": [rank for rank, verdict in told if not verdict["ok"]],
        "reason": "; ".join(wrong[:4]) or None,
    }


def _times(matrices: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """matrices [batch, r, c] · vectors [batch, c] → [batch, r] in float64 (complex128), converting a part at a time."""
    import torch

    batch, rows, columns = matrices.shape
    vectors = vectors.to(torch.complex128) if matrices.is_complex() else vectors
    result = torch.zeros(batch, rows, dtype=vectors.dtype, device=matrices.device)
    if matrices.numel() == 0:
        return result
    entries = max(1, _CHUNK // (rows * columns))
    step = rows if entries > 1 or matrices.dtype == torch.float64 else max(1, _CHUNK // columns)
    for first in range(0, batch, entries):
        chosen = slice(first, first + entries)
        for top in range(0, rows, step):
            part = wide(matrices[chosen, top : top + step])
            result[chosen, top : top + step] = torch.bmm(part, vectors[chosen, :, None])[:, :, 0]
    return result


def _picked(size: int, count: int, rng: np.random.Generator, always: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    if size <= count:
        return np.arange(size, dtype=np.int64)
    random = rng.integers(0, size, count)
    return np.unique(np.concatenate([random, np.array([0, size - 1, *always], dtype=np.int64)]))


def _edges(site: Site, block: Block, axis: str) -> list[int]:
    """First and last index of every shard along an axis, counted within `block`."""
    if site.split.value != axis:
        return []
    start, stop = getattr(block, axis).start, getattr(block, axis).stop
    step = -(-site.world_size // _SHARD_EDGES)
    parts = [getattr(site.shard_at(rank), axis) for rank in range(0, site.world_size, step)]
    return [i - start for part in parts if part.size for i in (part.start, part.stop - 1) if start <= i < stop]


def _reference(
    workload: Workload, site: Site, block: Block, batch: int, rows: np.ndarray[Any, Any], columns: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """C at rows × columns of one batch entry in float64, from (seed, index) alone, a part of k at a time."""
    m, k = site.problem.m.size, site.problem.k.size
    total = np.zeros((len(rows), len(columns)), np.complex128 if FACTS[workload.dtype].components == 2 else np.float64)
    for start in range(block.k.start, block.k.stop, _TERMS):
        terms = np.arange(start, min(start + _TERMS, block.k.stop), dtype=np.int64)
        how = (workload.dtype, workload.fill)
        a = values_at(workload.seed, "a", batch * m + block.m.start + rows, terms, *how)
        total += a @ values_at(workload.seed, "b", batch * k + terms, block.n.start + columns, *how)
    return total


def _largest_part(difference: Any) -> Any:
    """Sizes of real numbers; of complex ones, of the larger of their parts. NaN stays NaN. Arrays or tensors."""
    if isinstance(difference, np.ndarray):
        return np.maximum(np.abs(difference.real), np.abs(difference.imag))
    if difference.is_complex():
        return difference.real.abs().maximum(difference.imag.abs())
    return difference.abs()


def _check_entries(
    held: torch.Tensor, block: Block, workload: Workload, site: Site, allowed: Allowance
) -> tuple[float, float, str]:
    import torch

    rng = np.random.default_rng([workload.seed, site.rank, 1])
    worst, where = 0.0, ""
    for entry in _picked(block.batch.size, 4, rng, _edges(site, block, "batch")):
        rows = _picked(block.m.size, _ROWS, rng, _edges(site, block, "m"))
        columns = _picked(block.n.size, _COLUMNS, rng, _edges(site, block, "n"))
        batch = block.batch.start + int(entry)
        reference = _reference(workload, site, block, batch, rows, columns)
        picked = held[int(entry)][torch.from_numpy(rows).to(held.device)][:, torch.from_numpy(columns).to(held.device)]
        found = wide(picked).cpu().numpy()
        partial = np.maximum(np.abs(reference), allowed.scale)
        limit = allowed.out * np.abs(reference) + allowed.sums * partial
        with np.errstate(invalid="ignore", divide="ignore"):
            error = _largest_part(found - reference)
            relative = np.where(error == 0, 0.0, error / np.where(partial > 0, partial, 1.0))
        worst = max(worst, float(np.nan_to_num(relative, nan=np.inf, posinf=np.inf).max()))
        bad = np.argwhere(~(error <= limit))
        if len(bad) and not where:
            i, j = bad[0]
            place = f"C[{batch}, {block.m.start + rows[i]}, {block.n.start + columns[j]}]"
            where = f"{place} is {found[i, j]:.6g} and should be {reference[i, j]:.6g}"
    return worst, allowed.out + allowed.sums, where


def _check_products(
    held: torch.Tensor, block: Block, expected: torch.Tensor, x: torch.Tensor, allowed: Allowance
) -> tuple[float, float, str]:
    import torch

    x = x.to(held.device, torch.complex128 if held.is_complex() else torch.float64)
    n = block.n.size
    worst, where = 0.0, ""
    entries = max(1, _CHUNK // (block.m.size * n))
    step = block.m.size if entries > 1 else max(1, _CHUNK // n)
    for first in range(0, block.batch.size, entries):
        for top in range(0, block.m.size, step):
            part = (slice(first, first + entries), slice(top, top + step))
            rows = wide(held[part])
            error = _largest_part(rows @ x - expected[part].to(held.device)) / _X_RMS
            norms = torch.linalg.vector_norm(rows, dim=-1)
            partial = norms.clamp(min=sqrt(n) * allowed.scale)
            limit = _LAMBDA * allowed.out * norms + (allowed.sums + allowed.reference) * partial
            relative = torch.where(
                error == 0, error, error / torch.where(partial > 0, partial, torch.ones_like(partial))
            )
            worst = max(worst, float(torch.nan_to_num(relative, nan=inf, posinf=inf).max()))
            bad = torch.nonzero(~((error <= limit) & limit.isfinite()))  # an inf in C makes its own limit infinite
            if len(bad) and not where:
                entry, row = block.batch.start + first + int(bad[0][0]), block.m.start + top + int(bad[0][1])
                where = f"row {row} of batch entry {entry} fails the product check"
    return worst, _LAMBDA * allowed.out + allowed.sums + allowed.reference, where

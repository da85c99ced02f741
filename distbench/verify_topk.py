"""Is a top-k right? Exactly, at any size: every score is computed again and counted against the winners'.

counts   The product is computed once more, chunk by chunk as in the samples. Over all rows and ranks, the scores above
         a column's worst winner must be as many as its winners above it, and the scores equal to it, up to the last such
         winner's row, as many as its winners equal to it. So no better score, and no equal one of a lower index, was missed.
products Each chunk is checked as any product is (verify.check): sampled entries and a random product of all of them.
winners  Their scores are computed from the seed in float64; their rows are distinct and in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from distbench import verify
from distbench.config import Workload
from distbench.data import values_at
from distbench.layout import Block, Extent

if TYPE_CHECKING:
    import torch

    from distbench.collects.base import Site
    from distbench.collects.topk import TopK
    from distbench.unit import Unit

METHOD = "every score recomputed and counted against the winners; winners' scores against a float64 reference"


def check_chunks(
    unit: Unit, collect: TopK, winners: tuple[torch.Tensor, torch.Tensor], expected: torch.Tensor, x: torch.Tensor
) -> tuple[dict[str, Any], torch.Tensor]:
    """This rank's chunks: (the worst verdict of the products, counts of scores [2, n] as described above, float64).

    winners: (values, rows) [n, k], best first; expected: A·(B·x) of the shard, float64 [1, rows]; x: from verify.random_x.
    """
    import torch

    values, rows = winners
    worst, last = values[:, -1:], torch.where(values == values[:, -1:], rows, -1).amax(1, keepdim=True)
    worst, last = worst.to(unit.device), last.to(unit.device)
    counts = torch.zeros(2, values.shape[0], dtype=torch.float64)
    verdicts: list[dict[str, Any]] = []
    shard = unit.site.shard
    for index, piece in enumerate(collect.pieces()):
        unit.calls[index]()
        chunk = collect.target(piece)
        start, stop = shard.m.start + piece[1].start, shard.m.start + piece[1].stop
        block = Block(shard.batch, Extent(start, stop), shard.n, shard.k)
        verdict = verify.check(chunk, block, expected[:, piece[1]], x, unit.config.workload, unit.site, own=True)
        verdicts.append(vars(verdict))
        scores = chunk[0].mT
        numbers = torch.arange(start, stop, device=unit.device)
        counts[0] += (scores > worst).sum(1).double().cpu()
        counts[1] += ((scores == worst) & (numbers <= last)).sum(1).double().cpu()
    return verify.worst_of(verdicts), counts


def check_winners(
    values: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor, workload: Workload, site: Site
) -> tuple[float, float, str]:
    """Rank 0: (largest error of a winner's score relative to P, the tolerance, what is wrong or '').

    counts: the sum over ranks of `check_chunks`' counts.
    """
    import torch

    allowed = verify.allowance(workload, site.problem.k.size, site.problem.n.size, 1)
    tolerance = allowed.out + allowed.sums
    inside = (rows >= 0) & (rows < site.problem.m.size)
    if not bool(inside.all()):
        return float("inf"), tolerance, "a winner's row lies outside C"
    worst = values[:, -1:]
    held = torch.stack([(values > worst).sum(1), (values == worst).sum(1)]).double()
    wrong = torch.nonzero((counts != held).any(0))
    if len(wrong):
        column = int(wrong[0])
        return (
            float("inf"),
            tolerance,
            (
                f"column {column}: {counts[:, column].long().tolist()} scores above and equal to the worst winner, of which "
                f"{held[:, column].long().tolist()} were found"
            ),
        )
    later, equal = values[:, 1:] > values[:, :-1], values[:, 1:] == values[:, :-1]
    if bool((later | (equal & (rows[:, 1:] <= rows[:, :-1]))).any()):
        return float("inf"), tolerance, "the winners are not in order"
    error = _errors(values, rows, workload, site, allowed.scale)
    bad = error > tolerance
    detail = f"column {int(np.argwhere(~(error <= tolerance))[0][0])}: a winner's score is wrong" if bad.any() else ""
    return float(error.max(initial=0.0)), tolerance, detail


def _errors(
    values: torch.Tensor, rows: torch.Tensor, workload: Workload, site: Site, scale: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """|score - reference| relative to P of every winner, [n, k]."""
    n, k = values.shape
    terms = np.arange(site.problem.k.size, dtype=np.int64)
    how = (workload.dtype, workload.fill)
    b = values_at(workload.seed, "b", terms, np.arange(n, dtype=np.int64), *how)
    reference = np.empty((n, k))
    for column in range(n):
        a = values_at(workload.seed, "a", rows[column].numpy(), terms, *how)
        reference[column] = a @ b[:, column]
    partial = np.maximum(np.abs(reference), scale)
    found = values.double().numpy()
    error = np.abs(found - reference)
    relative = np.where(error == 0, 0.0, error / np.where(partial > 0, partial, 1.0))
    return np.nan_to_num(relative, nan=np.inf)

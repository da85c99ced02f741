"""torch.distributed names that changed: the newer where it exists (2.13 on), else the older."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

_ALL_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather_into(output: Any, part: Any, group: Any) -> None:
    """output [world · numel] = every rank's part [numel], in rank order."""
    _ALL_GATHER(output, part, group=group)


def reduce_scatter_into(output: Any, parts: Any, group: Any) -> None:
    """output [numel] = this rank's part of the sum over ranks of parts [world · numel]."""
    _REDUCE_SCATTER(output, parts, group=group)

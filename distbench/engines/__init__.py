"""Engines: the libraries that compute. One table; an engine is one small file with `prepare`, `settings` and `to_host`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from distbench.config import DType, EngineName
from distbench.engines import cupy_engine, numpy_engine, torch_engine

if TYPE_CHECKING:
    import torch


class Engine(Protocol):
    """What an engine's module offers."""

    def prepare(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], object]:
        """A call that computes c = a · b into c's own memory.

        a: [batch, m, k], b: [batch, k, n], c: [batch, m, n], on one device; each may be strided. All that can
        be done once (views, dispatch) is done here, so that the call is the library's and nothing else.
        """

    def settings(self, dtype: DType = DType.float32) -> dict[str, Any]:
        """Fix what decides a dtype's arithmetic (TF32 on or off, full-precision sums) and return it for the record."""

    def to_host(self, c: torch.Tensor) -> torch.Tensor:
        """A copy of a device's tensor in a new host array, made the way that the library's users make it."""


ENGINES: dict[EngineName, Engine] = {
    EngineName.torch: torch_engine,
    EngineName.numpy: numpy_engine,
    EngineName.cupy: cupy_engine,
}

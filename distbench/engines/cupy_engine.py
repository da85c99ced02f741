"""cupy: cupy.matmul with out=, on a GPU. The arrays are views of the memory that torch would use, on torch's stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distbench.config import DType

if TYPE_CHECKING:
    import torch


def to_host(c: torch.Tensor) -> torch.Tensor:
    """`.get()` takes its array from numpy, which asks for huge pages."""
    import cupy
    import torch

    view = cupy.from_dlpack(c.detach())
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream(c.device).cuda_stream, c.device.index)
    with cupy.cuda.Device(c.device.index):
        return torch.from_numpy(view.get(stream=stream))


def prepare(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], object]:
    import cupy
    import torch

    operands = (a, b, c) if c.shape[0] > 1 else (a[0], b[0], c[0])
    with cupy.cuda.Device(c.device.index):
        a_view, b_view, c_view = (cupy.from_dlpack(tensor.detach()) for tensor in operands)
    stream = torch.cuda.current_stream(c.device).cuda_stream
    if stream == 0:
        return lambda: cupy.matmul(a_view, b_view, out=c_view)
    own = cupy.cuda.ExternalStream(stream, c.device.index)

    def multiply() -> None:
        with own:
            cupy.matmul(a_view, b_view, out=c_view)

    return multiply


def settings(dtype: DType = DType.float32) -> dict[str, Any]:
    """cuBLAS may use TF32 through CuPy only where the user sets CUPY_TF32; float32 is IEEE otherwise."""
    import os

    import cupy

    os.environ["CUPY_TF32"] = "0"  # read at each product
    return {"cupy": cupy.__version__, "cuda_runtime": cupy.cuda.runtime.runtimeGetVersion(), "CUPY_TF32": "0"}

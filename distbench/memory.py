"""What a cell leaves behind: each rank's memory before and after it, for the record."""

from __future__ import annotations

import ctypes
import gc

import psutil
import torch


def settle() -> None:
    """Give back what is free: cycles that a failure's traceback made, and the C library's own stock of freed memory."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if torch.cuda.is_initialized() and clear is not None:
        clear()  # cuBLAS keeps tens of MB for each stream that it ever ran on
        torch.cuda.empty_cache()


def in_use() -> list[int | None]:
    """Bytes: this process's resident memory, and what torch holds on its GPUs (None where it uses none)."""
    on_devices = None
    if torch.cuda.is_initialized():
        on_devices = sum(torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()))
    return [psutil.Process().memory_info().rss, on_devices]


def told(ranks: list[list[list[int | None]]]) -> dict[str, list[int | None]]:
    """The record's `memory`, from each rank's [in_use before, in_use after]."""
    names = ("start_bytes", "end_bytes"), ("device_start_bytes", "device_end_bytes")
    return {names[kind][when]: [rank[when][kind] for rank in ranks] for kind in (0, 1) for when in (0, 1)}

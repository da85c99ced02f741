"""Host memory that a GPU copies from and to at the link's rate.

torch's own pinned allocator rounds to a power of two (6.1 GB become 8.6), keeps what is freed, and takes far longer to
lock fresh pages than touching them first and registering them.
"""

from __future__ import annotations

import torch


class PageLock:
    """A host tensor's pages, locked for this process's GPU until `release`. Raises RuntimeError where CUDA refuses."""

    def __init__(self, host: torch.Tensor) -> None:
        self.pointer, self.nbytes = host.data_ptr(), host.numel() * host.element_size()
        self.held = False
        if self.nbytes == 0:
            return
        host.view(-1)[:: max(1, 4096 // host.element_size())] = 0  # touch every page
        code = int(torch.cuda.cudart().cudaHostRegister(self.pointer, self.nbytes, 0))
        if code != 0:
            raise RuntimeError(f"cudaHostRegister of {self.nbytes} bytes failed (CUDA error {code})")
        self.held = True

    def release(self) -> None:
        """Unlock the pages; copies in flight are waited for."""
        if self.held:
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaHostUnregister(self.pointer)
            self.held = False

"""The world: ranks that agree. One control group for the whole run, one data group per backend.

The control group (gloo, on the CPU) carries cells, votes and results as JSON or integers and is never remade. The data
group carries the benchmark; after a failure it is dropped and made anew. Every control operation is called by all ranks
in the same order, whatever failed on one of them: work that can fail runs inside `attempt`.
"""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from distbench.alive import Watch
from distbench.dtypes import wire
from distbench.join import open_store
from distbench.launch import Launch
from distbench.member import Member, lone_copies, reason_of, this_member

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

T = TypeVar("T")
_FOREVER = timedelta(days=365)  # the watch ends a run that hangs, not a group's time-out


class CellFailed(Exception):
    """A step failed on at least one rank; raised on all of them. The message names the ranks and their reasons."""


class World:
    """This process among all of them. A world of one has the same interface and no connections."""

    def __init__(self, launch: Launch, watch: Watch) -> None:
        self.launch = launch
        self.watch = watch
        self.rank = launch.rank
        self.size = launch.world_size
        self.members: list[Member] = [this_member(launch)]
        self._data: dict[str, ProcessGroup] = {}

    @property
    def is_root(self) -> bool:
        return self.rank == 0

    def join(self) -> None:
        """Form the world. The watch ends the process if not all ranks arrive in time. Raises LaunchError
        and what open_store raises.
        """
        import torch.distributed as dist

        self.watch.await_ranks()
        if self.size == 1:
            if self.launch.launcher == "single" and (note := lone_copies()) is not None:
                self.launch = replace(self.launch, notes=(*self.launch.notes, note))
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=_FOREVER)
            return
        store, self.launch = open_store(self.launch, self.watch)
        self.watch.launch = self.launch
        self.watch.enter("join")  # a rank that is behind here has the store, but does not come to the others
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=_FOREVER)
        own = this_member(self.launch)
        self.members = [Member(**told) for told in self.gather_json(vars(own))]
        self.watch.set_members(self.members)

    def leave(self) -> None:
        """Close the groups; all ranks call it together."""
        import torch.distributed as dist

        if dist.is_initialized():
            self._control(dist.barrier)  # rank 0 may host the store: it leaves last of all
            self.watch.leave()
            self.drop_data()
            dist.destroy_process_group()
        self.watch.leave()

    # --- control -----------------------------------------------------------------------------------------------------

    def broadcast_json(self, message: Any = None) -> Any:
        """Rank 0's message, on all ranks."""
        import torch
        import torch.distributed as dist

        if self.size == 1:
            return message
        payload = json.dumps(message, allow_nan=False).encode() if self.is_root else b""
        (length,) = self.broadcast_ints([len(payload)])
        buffer = torch.zeros(length, dtype=torch.uint8)
        if self.is_root:
            buffer = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        self._control(lambda: dist.broadcast(buffer, 0))
        return json.loads(buffer.numpy().tobytes())

    def gather_json(self, message: Any) -> list[Any]:
        """Every rank's message in rank order, on all ranks."""
        import torch
        import torch.distributed as dist

        if self.size == 1:
            return [message]
        payload = json.dumps(message, allow_nan=False).encode()
        lengths = [row[0] for row in self.gather_ints([len(payload)])]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        self._control(lambda: dist.all_gather(parts, padded))
        return [json.loads(part[:n].numpy().tobytes()) for part, n in zip(parts, lengths, strict=True)]

    def broadcast_ints(self, values: list[int], source: int = 0) -> list[int]:
        """`source`'s integers on all ranks; every rank passes as many."""
        import torch
        import torch.distributed as dist

        if self.size == 1:
            return values
        buffer = torch.tensor(values, dtype=torch.int64)
        self._control(lambda: dist.broadcast(buffer, source))
        return [int(value) for value in buffer.tolist()]

    def gather_ints(self, values: list[int]) -> list[list[int]]:
        """Every rank's integers (as many on each) in rank order, on all ranks."""
        import torch
        import torch.distributed as dist

        if self.size == 1:
            return [values]
        own = torch.tensor(values, dtype=torch.int64)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        self._control(lambda: dist.all_gather(rows, own))
        return [[int(value) for value in row.tolist()] for row in rows]

    def sum_floats(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise sum of a float64 or complex128 CPU tensor over the ranks, in place, on all of them."""
        import torch.distributed as dist

        if self.size > 1:
            self._control(lambda: dist.all_reduce(wire(values)))
        return values

    def barrier(self) -> None:
        """All ranks are here."""
        import torch.distributed as dist

        if self.size > 1:
            self._control(dist.barrier)

    def send_int(self, value: int, to: int) -> None:
        import torch
        import torch.distributed as dist

        self._control(lambda: dist.send(torch.tensor([value], dtype=torch.int64), to))

    def receive_int(self, source: int) -> int:
        import torch
        import torch.distributed as dist

        buffer = torch.zeros(1, dtype=torch.int64)
        self._control(lambda: dist.recv(buffer, source))
        return int(buffer.item())

    def attempt(self, stage: str, step: Callable[[], T]) -> T:
        """Run a step that can fail on one rank, then vote: if it failed anywhere, CellFailed is raised everywhere.

        The step must not use the control group. If it fails while others wait for this rank on the data group, dropping
        that group wakes them.
        """
        self.watch.enter(stage)
        result, failure = self.guarded(stage, step)
        self.watch.progress()
        self.agree(failure)
        assert result is not None or failure is None
        return result  # type: ignore[return-value]

    def guarded(self, stage: str, step: Callable[[], T]) -> tuple[T | None, dict[str, Any] | None]:
        """(result, None), or (None, what failed) with the data group dropped so that waiting peers wake."""
        try:
            return step(), None
        except Exception as error:  # any failure of a step is the cell's failure, never the run's
            broke_data = _is_peer_loss(error)
            failure = {"rank": self.rank, "stage": stage, "reason": reason_of(error), "follows": broke_data}
            traceback.clear_frames(error.__traceback__)  # frames keep tensors and groups alive
        self.drop_data()
        return None, failure

    def agree(self, failure: dict[str, Any] | None) -> None:
        """The vote. Raises CellFailed on every rank if any rank passes a failure."""
        votes = self.gather_ints([0 if failure is None else 1])
        if not any(vote[0] for vote in votes):
            return
        self.drop_data()
        failures = [told for told in self.gather_json(failure) if told is not None]
        causes = [told for told in failures if not told["follows"]] or failures
        shown = [f"{self.members[told['rank']].title}, {told['stage']}: {told['reason']}" for told in causes[:4]]
        more = f"; and {len(causes) - 4} more ranks" if len(causes) > 4 else ""
        raise CellFailed("; ".join(shown) + more)

    # --- data --------------------------------------------------------------------------------------------------------

    def data(self, backend: str) -> ProcessGroup:
        """The data group; made when first used (all ranks call this together). Do not keep a reference to it."""
        import torch.distributed as dist

        if backend not in self._data:
            timeout = timedelta(seconds=self.watch.step_timeout_s)
            self._data[backend] = dist.new_group(backend=backend, timeout=timeout)
        return self._data[backend]

    def drop_data(self) -> None:
        """Close the data groups. Peers that wait in one get an error at once: gloo closes the sockets with the object."""
        import torch.distributed as dist

        while self._data:
            _, group = self._data.popitem()
            dist.destroy_process_group(group)
            del group
        gc.collect()

    def _control(self, operation: Callable[[], Any]) -> None:
        try:
            operation()
        except RuntimeError as error:
            self.watch.lost_connection(error)


def _is_peer_loss(error: Exception) -> bool:
    """A broken connection on the data group: some other rank's failure reached this one."""
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        sign in text for sign in ("Connection closed by peer", "Connection reset", "Broken pipe", "Timed out waiting")
    )

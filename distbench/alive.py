"""Liveness, apart from the process groups: a rank that dies, stops or hangs ends the run with its name.

A gloo call cannot be interrupted and a TCPStore client can hang past its own time-out, so nothing here runs on the main
thread: one thread beats through a store connection of its own, one guards that thread, one waits for signals. Rank 0
watches every rank's beats and gives the verdict; the others watch rank 0. No beat begins inside a timed window, unless
the window lasts so long that silence would be taken for death.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distbench.launch import Launch
from distbench.member import Member, first_line, reason_of, this_member
from distbench.neighbours import Neighbours, join_failure

if TYPE_CHECKING:
    from torch.distributed import Store

_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT)
_UNLESS_IGNORED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""A closed terminal (not under nohup), and what Slurm's --signal sends before the time limit."""


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a run with what it measured on disk."""
    return (*_ASKED_TO_END, *(it for it in _UNLESS_IGNORED if signal.getsignal(it) is not signal.SIG_IGN))


def write_error_file(message: str) -> None:
    """Leave the reason where torchrun looks for it, so that its report names it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": message, "timestamp": str(int(time.time()))}  # the part that torchrun prints
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)
    except OSError:
        pass  # the reason is on stderr too


class Watch:
    """The watching threads of one rank.

    `enter` tells the stage; `window` brackets a timed window; `on_end` (rank 0) is called with the reason before the
    process ends, to record the cell in flight.
    """

    def __init__(self, launch: Launch, timeout_s: float, step_timeout_s: float) -> None:
        self.launch = launch
        self.timeout_s = timeout_s
        self.step_timeout_s = step_timeout_s
        self.on_end: Callable[[str, str], None] | None = None
        self.how_to_go_on: str | None = None
        """On rank 0: the command that goes on with a run that ends here."""
        self._interval_s = min(1.0, timeout_s / 10)
        self._window_gap_s = timeout_s / 20
        """The longest that a timed window holds a beat back."""
        round_s = self._interval_s + self._window_gap_s
        self._silence_s = timeout_s - 3 * round_s - self._interval_s
        """Without a beat for so long: lost. A round until rank 0 sees the last beat, one until it looks again, one and an
        interval until all have read the verdict: then the run has ended within timeout_s."""
        self._members: list[Member] = [this_member(launch)]
        self._stage = "join"
        self._steps = 0
        self._outside_window = threading.Event()
        self._outside_window.set()
        self._last_round = float("inf")  # until this rank awaits the others: importing torch is no silence
        self._joined = False
        self._judged = False
        self._leaving = False
        self._ending = threading.Lock()
        self._interruption: str | None = None
        self._beats: dict[int, dict[str, Any]] = {}
        """The last beat of each rank that was heard: of all on rank 0, before the join of all on every rank."""
        self._heard: dict[int, tuple[str, float]] = {}
        self._neighbours = Neighbours(launch)
        self._why: str | None = None
        """What this rank dies of: its last beat tells it."""
        self._why_told = threading.Event()
        self.awaited: Callable[[], list[int]] = list
        """Rank 0: the ranks that were let in so far."""
        self.unreached: Callable[[], str] = str
        """The others: why rank 0 was not reached so far."""
        self.met: str | None = None
        """The others: rank 0 in words, once it has let this rank in."""

    # --- told by the main thread -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to guard; call before anything that can hang. From here a thread takes the signals that end a run."""
        awaited = ending_signals()
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        self._spawn(lambda: self._wait_for_signals(awaited))
        if self.launch.world_size > 1 or self._neighbours.launcher is not None:
            self._spawn(self._guard)

    def await_ranks(self) -> None:
        """From here on the other ranks must answer in time."""
        self._last_round = time.monotonic()

    def beat_through(self, connect: Callable[[], Store]) -> None:
        """Begin to beat; `connect` opens a store connection for this thread alone."""
        self._spawn(lambda: self._beat(connect))

    def set_members(self, members: list[Member]) -> None:
        """All ranks, known once the world has formed: from here on silence is death."""
        self._members = members
        self._last_round = time.monotonic()
        self._joined = True

    def enter(self, stage: str) -> None:
        self._stage = stage
        self._steps += 1

    def progress(self) -> None:
        """A step is done: a rank that waits for the others is ahead of them."""
        self._steps += 1

    def open_window(self) -> None:
        self._outside_window.clear()

    def close_window(self) -> None:
        self._outside_window.set()
        self._steps += 1

    def leave(self) -> None:
        """The run is over for this rank; its silence from now on means nothing to itself."""
        self._leaving = True
        self._outside_window.set()

    def fail(self, error: Exception) -> None:
        """This rank cannot go on, and no vote is left to say so: tell rank 0, then end. Does not return."""
        why = f"{self._own().title}, {self._stage}: {reason_of(error)}"
        if self.launch.rank != 0:
            self._why = why
            if self._why_told.wait(2 * self._interval_s + self._window_gap_s):
                time.sleep(2 * self._interval_s)  # rank 0 reads it, and says it for all
        self.end(why, "failed", speaks=True)

    def could_not_join(self, error: Exception) -> None:
        """The groups could not be made: a peer's death, where there is one. Does not return."""
        time.sleep(self._interval_s)
        gone = [member for member in self._local_peers() if member.is_gone()]
        if gone:
            self._let_rank_0_speak()
            self.end(self._died(gone), "failed", lost=gone)
        self.fail(error)

    def lost_connection(self, error: BaseException) -> None:
        """The control group broke, which only a dead peer does: find it, then end. Does not return."""
        deadline = time.monotonic() + self.timeout_s
        while time.monotonic() < deadline:
            if self._judged:  # ranks that read the verdict leave before rank 0: it, not their leaving, is the reason
                time.sleep(self._interval_s)
                continue
            gone = [member for member in self._local_peers() if member.is_gone()]
            if gone and (self.launch.rank == 0 or any(member.rank == 0 for member in gone) or not self._joined):
                if not self._joined:
                    self._let_rank_0_speak()
                self.end(self._died(gone), "failed", lost=gone)
            time.sleep(self._interval_s / 4)  # the verdict comes through the beating thread
        self.end(f"the connection between the ranks broke: {first_line(error)}", "failed")

    # --- the threads -------------------------------------------------------------------------------------------------

    def _spawn(self, target: Callable[[], None]) -> None:
        threading.Thread(target=target, daemon=True).start()

    def _wait_for_signals(self, awaited: tuple[signal.Signals, ...]) -> None:
        while True:
            number = signal.sigwait(awaited)
            if self._judged:
                continue  # the launcher's answer to the ranks that read the verdict and left
            # A launcher answers a rank's death with SIGTERM to the others: then that rank's death is the reason.
            gone = [member for member in self._local_peers() if member.is_gone()]
            if gone:
                self._let_rank_0_speak()
                self.end(self._died(gone), "failed", lost=gone)
            self._interruption = f"interrupted by {signal.Signals(number).name}"
            self._let_rank_0_speak()
            self.end(self._interruption, "skipped")

    def _guard(self) -> None:
        """Ends a rank whose beating thread hangs: the store's host is stopped, cut off, or silent."""
        while not self._leaving:
            time.sleep(self._interval_s)
            if self._neighbours.launcher_died() and not self._leaving:
                self._let_rank_0_speak()
                self.end(self._died([]), "failed")
            if self.launch.world_size == 1:
                continue
            if not self._joined:
                self._neighbours.look_round()
                if gone := [member for member in self._local_peers() if member.is_gone()]:
                    self._let_rank_0_speak()
                    self.end(self._died(gone), "failed", lost=gone)
            silent_s = time.monotonic() - self._last_round
            if silent_s <= (self._silence_s if self._joined else self.timeout_s) or self._leaving:
                continue
            if not self._joined:
                reason, lost = self._join_failure()
                if all(member.rank != 0 for member in lost):
                    self._let_rank_0_speak()
                self.end(reason, "failed", lost=lost)
            zero = self._members[0]
            self.end(
                f"{zero.title} has not answered for {silent_s:.1f} s, in stage {self._stage}", "failed", lost=[zero]
            )

    def _beat(self, connect: Callable[[], Store]) -> None:
        try:
            store = connect()
        except RuntimeError as error:
            self._store_lost(error)
            return
        rank, size = self.launch.rank, self.launch.world_size
        seen = self._heard
        steps_seen: tuple[int, float] = (-1, time.monotonic())
        number = 0
        store.set(f"beat/{rank}", self._payload(number))
        if rank == 0:
            store.set("verdict", "")
        while not self._leaving:
            try:
                number += 1
                told = self._why
                store.set(f"beat/{rank}", self._payload(number))
                if told is not None:
                    self._why_told.set()
                if not self._joined:
                    self._hear(store, [r for r in range(size) if store.check([f"beat/{r}"])])
                elif rank == 0:
                    steps_seen = self._judge(store, seen, steps_seen)
                else:
                    self._follow(store, seen)
            except RuntimeError as error:  # the store's server is gone: rank 0 or the launcher's agent ended
                if self._leaving:
                    return
                self._store_lost(error)
            if self._joined:
                self._last_round = time.monotonic()
            time.sleep(self._interval_s)
            # Not inside a timed window; but a window of minutes must not look like death.
            self._outside_window.wait(timeout=self._window_gap_s)

    def _payload(self, number: int) -> str:
        told = {"n": number, "stage": self._stage, "steps": self._steps, "leaving": self._leaving, "why": self._why}
        if not self._joined:
            told["member"] = vars(self._members[0])
        return json.dumps(told)

    def _hear(self, store: Store, ranks: list[int]) -> None:
        """Read the last beat of these ranks, and since when it is the last."""
        now = time.monotonic()
        for rank, raw in zip(ranks, store.multi_get([f"beat/{r}" for r in ranks]), strict=True):
            text = raw.decode()
            self._beats[rank] = json.loads(text)
            if rank not in self._heard or self._heard[rank][0] != text:
                self._heard[rank] = (text, now)

    def _judge(self, store: Store, seen: dict[int, tuple[str, float]], steps_seen: tuple[int, float]) -> Any:
        """Rank 0: who is silent, who is stuck. Returns the updated (steps of all ranks, since when)."""
        self._hear(store, list(range(self.launch.world_size)))
        now = time.monotonic()
        for beat in self._beats.values():
            if beat["why"] is not None:
                self._verdict(store, beat["why"], [])
        silent = [
            self._members[rank]
            for rank, (text, since) in seen.items()
            if rank != 0 and now - since > self._silence_s and not json.loads(text)["leaving"]
        ]
        if silent:
            names = ", ".join(member.title for member in silent)
            self._verdict(store, f"{names} not heard of for {self._silence_s:.3g} s, in stage {self._stage}", silent)
        parsed = [self._beats[rank] for rank in range(self.launch.world_size)]
        steps = sum(int(beat["steps"]) for beat in parsed)
        if steps != steps_seen[0]:
            return (steps, now)
        if now - steps_seen[1] > self.step_timeout_s:
            least = min(int(beat["steps"]) for beat in parsed)
            behind = [self._members[r] for r, beat in enumerate(parsed) if int(beat["steps"]) == least]
            names = ", ".join(f"{member.title} in stage {parsed[member.rank]['stage']}" for member in behind[:4])
            self._verdict(store, f"no progress for run.step_timeout_s={self.step_timeout_s:g} s; behind: {names}", [])
        return steps_seen

    def _follow(self, store: Store, seen: dict[int, tuple[str, float]]) -> None:
        """The other ranks: has rank 0 given a verdict, does it still beat?"""
        verdict, beat = (raw.decode() for raw in store.multi_get(["verdict", "beat/0"]))
        if verdict:
            told = json.loads(verdict)
            self.end(told["reason"], "failed", lost=[self._members[rank] for rank in told["lost"]], quiet=True)
        now = time.monotonic()
        if 0 not in seen or seen[0][0] != beat:
            seen[0] = (beat, now)
        elif now - seen[0][1] > self._silence_s and not json.loads(beat)["leaving"]:
            zero = self._members[0]
            self.end(
                f"{zero.title} not heard of for {self._silence_s:.3g} s, in stage {json.loads(beat)['stage']}",
                "failed",
                lost=[zero],
            )

    def _verdict(self, store: Store, reason: str, lost: list[Member]) -> None:
        """Rank 0 ends the run. Its record comes first: once others kill the lost rank, a launcher may end them all."""
        self._judged = True

        def tell() -> None:
            store.set("verdict", json.dumps({"reason": reason, "lost": [member.rank for member in lost]}))
            # So that the others read it before rank 0 takes the store with it.
            time.sleep(2 * self._interval_s + self._window_gap_s)

        self.end(reason, "failed", lost=lost, then=tell)

    def _store_lost(self, error: Exception) -> None:
        time.sleep(self._interval_s)  # the launcher's SIGTERM, or the main thread's own end, says it better
        if self._leaving:
            return
        gone = [member for member in self._local_peers() if member.is_gone()]
        reason = f"the store of the run is gone: {first_line(error)}"
        if gone or self._neighbours.launcher_died():
            reason = self._died(gone)
        self.end(reason, "failed", lost=gone)

    # --- the end -----------------------------------------------------------------------------------------------------

    def end(
        self,
        reason: str,
        status: str,
        lost: list[Member] | None = None,
        quiet: bool = False,
        speaks: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Record the cell in flight (rank 0), say why, kill this host's lost ranks, and end with status 1.

        speaks: the reason is this rank's own, so it says it, whichever rank it is. then: done after the record.
        """
        with self._ending:  # the first thread to come here ends the process; the others never get past
            if self._leaving:
                return
            if self._interruption is not None:  # what breaks after the signal, breaks because of it
                reason, status, lost = self._interruption, "skipped", None
            try:
                self._last_words(reason, status, quiet, speaks)
                if then is not None:
                    then()
                if self._interruption is not None and self.launch.world_size > 1:
                    time.sleep(self._interval_s / 2)  # until the signal has reached the others: see _wait_for_signals
            finally:  # a full disk or a closed pipe must not keep the process alive
                try:
                    if lost and not self._speaks(status, speaks):
                        time.sleep(2 * self._interval_s)  # those that say why come first: the kill may end them
                    self._kill(lost or [])
                finally:
                    os._exit(1)

    def _kill(self, lost: list[Member]) -> None:
        """Last of all: mpirun answers with SIGKILL to the ranks that live."""
        for member in lost:
            if member.machine == self._own().machine and member.pid != os.getpid():
                member.kill()

    def _last_words(self, reason: str, status: str, quiet: bool, speaks: bool) -> None:
        write_error_file(reason)
        try:
            if self.on_end is not None:
                self.on_end(reason, status)
            sys.stdout.flush()
        finally:
            speaks = self._speaks(status, speaks)
            if speaks and not quiet:
                print(f"distbench: {reason}; rank {self.launch.rank} ends", file=sys.stderr, flush=True)
            if speaks and self.how_to_go_on is not None:
                print(f"what was measured is on disk; to go on:\n  {self.how_to_go_on}", file=sys.stderr, flush=True)

    def _speaks(self, status: str, own_reason: bool) -> bool:
        """Rank 0, and two ranks of each host in case it is rank 0 or the first of them that is lost."""
        return own_reason or self.launch.rank == 0 or (self.launch.local_rank <= 1 and status == "failed")

    def _own(self) -> Member:
        return self._members[self.launch.rank if self._joined else 0]

    def _local_peers(self) -> list[Member]:
        own = self._own()
        known = self._members if self._joined else self._neighbours.known.values()
        return [member for member in known if member.machine == own.machine and member.rank != self.launch.rank]

    def _let_rank_0_speak(self) -> None:
        """An end before rank 0's own would look like a death to it: it would name this rank too."""
        if self.launch.rank != 0:
            time.sleep(2 * self._interval_s)

    def _died(self, gone: list[Member]) -> str:
        """Who died, where, and of what if it could still say so."""
        if told := self._neighbours.launcher_died():  # ranks that saw it first have left
            return f"the launcher of {self._own().title} {told}, in stage {self._stage}"
        if any(member.rank == 0 for member in gone):
            gone = [member for member in gone if member.rank == 0]  # the others left because of it
        for member in gone:
            if why := self._beats.get(member.rank, {}).get("why"):
                return str(why)
        # Votes keep the ranks in step, so the stage is this one's: the last beat is older.
        return f"{', '.join(member.title for member in gone[:4])} died, in stage {self._stage}"

    def _join_failure(self) -> tuple[str, list[Member]]:
        where = f"{self.launch.address or 'this host'}:{self.launch.port or 'agreed port'}"
        arrived = set(self._heard) or set(self.awaited())
        told = {rank: Member(**beat["member"]) for rank, beat in self._beats.items() if "member" in beat}
        known = self._neighbours.known | told
        if not arrived:
            zero = known[0].title if 0 in known else self.met or "rank 0"
            reason = f"no answer from {zero} for {self.timeout_s:g} s (run.timeout_s), in stage join: "
            return reason + (self.unreached() or where), [known[0]] if 0 in known else []
        now = time.monotonic()
        behind = [rank for rank, (_, since) in self._heard.items() if now - since > 4 * self._interval_s]
        if not behind:
            least = min((beat["steps"] for beat in self._beats.values()), default=0)
            behind = [rank for rank, beat in self._beats.items() if beat["steps"] == least]
        within = f"at {where} within run.timeout_s={self.timeout_s:g} s"
        return join_failure(arrived, behind, known, self.launch.world_size, within)

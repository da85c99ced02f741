"""Ranks that meet the wrong ones: a taken port, a foreign or silent service, another run on the same port, odd addresses.

Catches worlds that mix two runs, and starts that hang where a line could have said what is wrong.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from helpers import Launcher, Result, mpirun, refusal, run, start

TINY = ["workload=square", "workload.n=32", "measure=quick", "measure.max_time_s=0.2"]
SECONDS = 40
"""Far below run.timeout_s=120 in these tests; most of it is importing torch on a busy machine."""
WORDS = [*TINY, "run.timeout_s=120"]


def plain(rank: int, size: int, port: int, address: str = "127.0.0.1") -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": str(port)}


def free_port() -> int:
    return int(Launcher("env", 1).environments()[0]["MASTER_PORT"])


def reason(result: Result) -> str:
    assert result.returncode == 1, result.stdout
    assert result.records == []
    assert result.seconds < SECONDS
    return refusal(result)


@contextmanager
def service(answer: bytes | None) -> Iterator[int]:
    """A program that listens and answers so; None: says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            held = []
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                if answer is not None:
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize(
    ("answer", "told"), [(b"SSH-2.0-x\r\n", "other than distbench answers"), (None, "said nothing")]
)
def test_a_port_that_another_program_holds_is_told_on_both_sides(answer: bytes | None, told: str) -> None:
    with service(answer) as port:
        zero, one = (start(WORDS, env=plain(rank, 2, port)) for rank in (0, 1))
        assert f"port {port} is taken" in reason(zero.wait())
        assert told in reason(one.wait())


@pytest.mark.usefixtures("in_tmp")
def test_ranks_of_different_command_lines_do_not_become_one_world() -> None:
    port = free_port()
    zero = start(WORDS, env=plain(0, 2, port))
    one = start([*WORDS, "workload.dtype=float64"], env=plain(1, 2, port))
    assert "was given other arguments" in reason(one.wait())
    assert "was given other arguments" in reason(zero.wait())


@pytest.mark.usefixtures("in_tmp")
def test_two_runs_on_one_port_are_never_mixed_and_one_is_right() -> None:
    port = free_port()
    runs = [[start([*WORDS, f"workload.seed={seed}"], env=plain(rank, 2, port)) for rank in (1, 0)] for seed in (1, 2)]
    ended = [[running.wait() for running in ranks] for ranks in runs]
    codes = sorted(tuple(result.returncode for result in results) for results in ended)
    assert codes == [(0, 0), (1, 1)], [result.stderr for results in ended for result in results]
    lost = next(results for results in ended if results[0].returncode != 0)
    assert all(refusal(result) for result in lost)
    won = next(number for number, results in enumerate(ended, 1) if results[0].returncode == 0)
    (record,) = ended[-1][-1].records  # read when all had ended
    assert (record["config"]["workload"]["seed"], record["status"]) == (won, "ok")


@pytest.mark.usefixtures("in_tmp")
def test_two_mpiruns_at_once_are_both_right() -> None:
    both = [start([*WORDS, f"workload.seed={seed}"], mpirun(2)) for seed in (1, 2)]
    for running in both:
        result = running.wait()
        assert result.returncode == 0, result.stderr
    assert sorted(record["config"]["workload"]["seed"] for record in result.records) == [1, 2]


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize("address", ["::1", "localhost", "127.0.0.2"])
def test_ipv6_names_and_literal_addresses_work(address: str) -> None:
    port = free_port()
    zero, one = (start(WORDS, env=plain(rank, 2, port, address)) for rank in (0, 1))
    assert [running.wait().returncode for running in (zero, one)] == [0, 0], zero.stderr() + one.stderr()


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize("address", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_that_leads_nowhere_ends_within_the_time_out(address: str) -> None:
    result = run([*TINY, "run.timeout_s=4"], env=plain(1, 2, free_port(), address))
    assert result.returncode == 1
    assert f"no answer from rank 0 for 4 s (run.timeout_s), in stage join: {address}" in result.stderr
    assert result.seconds < SECONDS


STOPS_ONCE_MET = """
import os, signal, sys
from datetime import timedelta
from distbench import join, launch
from distbench.greet import hello
zero = launch.detect(os.environ)
_, _, door = join._open_door(zero, hello(zero), timedelta(seconds=60))
door.await_all()
os.kill(os.getpid(), signal.SIGSTOP)
"""
"""Rank 0 with its door and its store, stopped before the others have reached the store."""


@pytest.mark.usefixtures("in_tmp")
def test_a_rank_0_that_stops_once_it_was_met_is_named_with_its_host_and_stage() -> None:
    port, words = free_port(), [*TINY, "run.timeout_s=4"]
    environment = os.environ | plain(0, 2, port)
    with subprocess.Popen([sys.executable, "-c", STOPS_ONCE_MET, *words], env=environment) as zero:
        try:
            one = run(words, env=plain(1, 2, port))
        finally:
            zero.send_signal(signal.SIGKILL)
    named = f"rank 0 (host {os.uname().nodename}, pid {zero.pid})"
    assert f"no answer from {named} for 4 s (run.timeout_s), in stage join: 127.0.0.1:{port}" in reason(one)

"""The greeting, over real sockets: who is let in, who is sent away and why, and ports that are not rank 0's."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from distbench import greet
from distbench.greet import Door, Hello, NotThisRun, difference, hello, knock
from distbench.launch import Launch


def a_hello(rank: int = 0, **changes: Any) -> Hello:
    return hello(Launch("env", rank, 3, rank, 3, job="abc")) | {"pid": 1000 + rank} | changes


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def door(listener: socket.socket) -> Iterator[Door]:
    made = Door(a_hello(), listener, 4321)
    yield made
    made.close()


def at(door_or_socket: Door | socket.socket) -> Any:
    server = door_or_socket._listener if isinstance(door_or_socket, Door) else door_or_socket
    return server.getsockname()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"job": "other"}, "belongs to another run"),
        ({"size": 4}, "is of a world of 4, rank 0 of one of 3"),
        ({"torch": "1.0"}, "has torch 1.0, rank 0 has "),
        ({"python": "3.1"}, "has python 3.1, rank 0 has "),
        ({"distbench": "0"}, "has distbench 0, rank 0 has "),
        ({"arguments": "x", "shown": "workload.n=9"}, r"was given other arguments \(workload.n=9\) than rank 0"),
    ],
)
def test_what_differs_is_named_with_both_values(changes: dict[str, Any], reason: str | None) -> None:
    found = difference(a_hello(), a_hello(1, **changes))
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith("rank 1 (host ")

        assert re.search(reason, found), found


def test_ranks_of_the_run_are_let_in_and_told_the_store(door: Door) -> None:
    zero = f"rank 0 (host {os.uname().nodename}, pid 1000)"
    for rank in (1, 2):
        assert knock(a_hello(rank), socket.AF_INET, at(door)) == (4321, "127.0.0.1", "127.0.0.1", zero)
    door.await_all()
    assert sorted(door.ranks()) == [0, 1, 2]


def test_a_rank_of_other_arguments_is_sent_away_and_the_right_one_still_let_in(door: Door) -> None:
    with pytest.raises(NotThisRun, match="was given other arguments"):
        knock(a_hello(1, arguments="x"), socket.AF_INET, at(door))
    assert door.ranks() == [0]
    assert knock(a_hello(1), socket.AF_INET, at(door))[0] == 4321


def test_a_second_process_of_a_rank_is_another_run(door: Door) -> None:
    knock(a_hello(1), socket.AF_INET, at(door))
    with pytest.raises(NotThisRun, match=r"rank 1 has arrived already.*MASTER_PORT of its own"):
        knock(a_hello(1, pid=77), socket.AF_INET, at(door))
    with pytest.raises(NotThisRun, match="rank 0 has arrived already"):
        knock(a_hello(0, pid=78), socket.AF_INET, at(door))


def test_rank_0_gives_up_a_while_after_it_sent_a_rank_away(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greet, "_GRACE_S", 0.2)
    with pytest.raises(NotThisRun):
        knock(a_hello(1, torch="1.0"), socket.AF_INET, at(door))
    with pytest.raises(NotThisRun, match=r"rank 1 .* has torch 1.0"):
        door.await_all()


def test_strangers_at_the_door_do_no_harm(door: Door) -> None:
    silent = socket.create_connection(at(door))
    for data in (b"GET / HTTP/1.0\r\n\r\n", b"[1]\n", b"\xff\xfe\n", b'{"rank": "x"}\n', b""):
        with socket.create_connection(at(door)) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            assert b"not a greeting" in client.recv(4096)
    with silent:
        assert knock(a_hello(2), socket.AF_INET, at(door))[0] == 4321


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = server.getsockname()
    with pytest.raises(ConnectionRefusedError):
        knock(a_hello(1), socket.AF_INET, where)


def test_a_port_that_says_nothing_is_left_in_time(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greet, "_SILENCE_S", 0.3)
    began = time.monotonic()
    with pytest.raises(NotThisRun, match="listens there and has said nothing"):
        knock(a_hello(1), socket.AF_INET, at(listener))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.0 400 Bad Request\r\n\r\n", b"{}\n", b"", None])
def test_something_else_that_answers_is_told(listener: socket.socket, answer: bytes | None) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            heard = connection.recv(65536)
            connection.sendall(heard if answer is None else answer)

    server = threading.Thread(target=serve)
    server.start()
    with pytest.raises(NotThisRun, match="something other than distbench answers there"):
        knock(a_hello(1), socket.AF_INET, at(listener))
    server.join()

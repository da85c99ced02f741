"""Two network namespaces as two hosts: torchrun's rendezvous and plain variables, and a cable that is pulled.

Catches hosts taken for one, local ranks counted over all of them, and sides that wait for each other for ever.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from helpers import Launcher, Running, start
from hosts import NODES, Hosts

SMALL = ["workload=square", "workload.n=96", "collect=all_gather", "measure=quick", "measure.max_time_s=0.3"]
TIMEOUT_S = 10
RENDEZVOUS = {
    "static": ["--rdzv_backend=static", "--master_addr=n0", "--master_port=29500"],
    "c10d": ["--rdzv_backend=c10d", "--rdzv_endpoint=n0:29500", "--rdzv_id=two-hosts"],
}


def torchrun_on(hosts: Hosts, index: int, rendezvous: str, words: list[str], cwd: Path) -> Running:
    node = ["--nnodes=2", "--nproc_per_node=2", *([f"--node_rank={index}"] if rendezvous == "static" else [])]
    program = [sys.executable, "-m", "torch.distributed.run", *node, *RENDEZVOUS[rendezvous], "-m", "distbench"]
    launcher = Launcher("words", 1, (*hosts.on(NODES[index]), *program))
    return start(words, launcher, env={"LOGLEVEL": "ERROR"}, program=(), cwd=cwd)


@pytest.mark.parametrize("rendezvous", RENDEZVOUS)
def test_torchrun_over_two_hosts(hosts: Hosts, in_tmp: Path, rendezvous: str) -> None:
    both = [torchrun_on(hosts, index, rendezvous, SMALL, in_tmp) for index in (0, 1)]
    results = [running.wait(120) for running in both]
    assert [result.returncode for result in results] == [0, 0], results[0].stderr + results[1].stderr
    (record,) = results[0].records
    assert record["world"]["launcher"] == "torchrun"
    assert sorted((rank["host"], rank["local_rank"]) for rank in record["world"]["ranks"]) == [
        *(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1))
    ]


@pytest.mark.parametrize("address", ["n0", "192.168.77.2", "fd77::2"])
def test_plain_variables_over_two_hosts_count_local_ranks_by_host(hosts: Hosts, in_tmp: Path, address: str) -> None:
    where = ["n0", "n1", "n0"]
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": address, "MASTER_PORT": "29500"}
    program = ["-m", "distbench", *SMALL]
    ranks = [
        start(
            [],
            Launcher("words", 1, (*hosts.on(host), sys.executable, *program)),
            env=variables | {"RANK": str(rank)},
            program=(),
        )
        for rank, host in enumerate(where)
    ]
    results = [running.wait(120) for running in ranks]
    assert [result.returncode for result in results] == [0, 0, 0], [result.stderr for result in results]
    (record,) = results[0].records
    assert [(rank["host"], rank["local_rank"]) for rank in record["world"]["ranks"]] == [
        ("n0", 0),
        ("n1", 0),
        ("n0", 1),
    ]


def test_a_host_that_is_cut_off_ends_both_sides(hosts: Hosts, in_tmp: Path) -> None:
    long = ["workload=square", "workload.n=500", "collect=all_gather", "measure.max_time_s=300"]
    long += ["measure.min_samples=1000000", "measure.max_samples=1000000", f"run.timeout_s={TIMEOUT_S}"]
    both = [torchrun_on(hosts, index, "static", long, in_tmp) for index in (0, 1)]
    try:
        both[0].await_text("  verify")  # the stage before measure is over
        time.sleep(1)
        hosts.cut("n1")
        began = time.monotonic()
        both[0].await_gone(120)
        seconds = time.monotonic() - began
    finally:
        hosts.mend("n1")
    results = [running.wait(180) for running in both]
    print(f"gone {seconds:.1f} s after the cable was pulled")
    assert seconds < TIMEOUT_S + 5, results[0].stderr
    assert all(result.returncode != 0 for result in results)
    (record,) = results[0].records
    assert record["status"] == "failed"
    assert "(host n1, pid " in record["reason"], record["reason"]


@pytest.mark.parametrize("launcher", ["env", "torchrun"])
def test_hosts_whose_own_name_leads_to_their_loopback(hosts: Hosts, in_tmp: Path, launcher: str) -> None:
    """As Debian writes /etc/hosts: 127.0.1.1 and the own name. Gloo would tell that address to the other host."""
    table = (hosts.folder / "hosts").read_text()
    runs = []
    for index, host in enumerate((*NODES, "n0") if launcher == "env" else NODES):
        own = in_tmp / f"hosts-{host}"
        own.write_text(table.replace(f"{hosts.address(host)} {host}", f"127.0.1.1 {host}"))
        there = [*hosts.on(host), "sh", "-c", f'mount --bind {own} /etc/hosts; exec "$@"', "there", sys.executable]
        variables = {"RANK": str(index), "WORLD_SIZE": "3", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
        if launcher == "torchrun":
            node = ["--nnodes=2", "--nproc_per_node=1", f"--node_rank={index}"]
            there += ["-m", "torch.distributed.run", *node, *RENDEZVOUS["static"]]
            variables = {"LOGLEVEL": "ERROR"}
        words = Launcher("words", 1, (*there, "-m", "distbench", *SMALL, "run.timeout_s=20"))
        runs.append(start([], words, env=variables, program=()))
    results = [running.wait(120) for running in runs]
    assert {result.returncode for result in results} == {0}, [result.stderr for result in results]
    (record,) = results[0].records
    assert record["world"]["launcher"] == launcher
    assert [rank["host"] for rank in record["world"]["ranks"]] == ["n0", "n1", "n0"][: len(runs)]

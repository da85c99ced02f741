"""experiment=health over three hosts, one of which has a slow cable."""

from __future__ import annotations

import sys
from pathlib import Path

from helpers import Launcher, require, start
from hosts import LOGIN, Hosts

SMALL = ["+experiment=health", "workload.n=256", "threads=1", "measure.max_time_s=1", "measure.min_time_s=0.3"]
# The three hosts share this machine's cores: only the links are looked at.
LENIENT = [f"health.{key}=900" for key in ("slow", "spread", "stalls", "late", "late_starts")]


def test_the_host_behind_a_slow_cable_is_named(hosts: Hosts, in_tmp: Path) -> None:
    require("tc")
    where = [LOGIN, "n0", "n1"]
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": LOGIN, "MASTER_PORT": "29501", "GLOO_SOCKET_IFNAME": "eth0"}
    program = [sys.executable, "-m", "distbench", *SMALL, *LENIENT, "health.link_mib=2"]
    hosts.narrow("n1", "200mbit")
    try:
        ranks = [
            start(
                [], Launcher("words", 1, (*hosts.on(host), *program)), env=variables | {"RANK": str(rank)}, program=()
            )
            for rank, host in enumerate(where)
        ]
        results = [running.wait(120) for running in ranks]
    finally:
        hosts.widen("n1")
    (record,) = results[0].records
    assert record["status"] == "ok", record["reason"]
    assert [item["verdict"] for item in record["health"]] == ["ok", "ok", "slow_link"], results[0].stdout
    assert record["health"][2]["host"] == "n1"
    assert record["health"][2]["numbers"]["host_link_gb_per_s"] < 0.025 * 1.2  # 200 Mbit/s, and the bucket
    assert "slow_link: its best link to other hosts carries" in results[0].stdout
    assert [result.returncode for result in results] == [1, 0, 0]

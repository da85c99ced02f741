"""Real mpirun, Open MPI's and MPICH's, on one host and over two, and the scripts in launch/.

Catches a world that needs MASTER_* where none is set, ranks of a host that are counted wrong, and scripts that do not run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from helpers import require, run_words
from hosts import Hosts

SMALL = ["workload=square", "workload.n=96", "collect=all_gather", "measure=quick", "measure.max_time_s=0.3"]
PROGRAM = [sys.executable, "-m", "distbench", *SMALL]
LAUNCH = Path(__file__).resolve().parents[2] / "launch"
ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []
MPICH = "mpirun.mpich"


@pytest.mark.usefixtures("in_tmp")
def test_mpich_needs_no_address_on_one_host() -> None:
    require(MPICH)
    (record,) = run_words([MPICH, "-np", "3", *PROGRAM]).records
    assert (record["world"]["launcher"], record["world"]["size"], record["status"]) == ("mpich", 3, "ok")
    assert [rank["local_rank"] for rank in record["world"]["ranks"]] == [0, 1, 2]


@pytest.mark.usefixtures("in_tmp")
def test_open_mpi_over_two_hosts_meets_at_the_head(hosts: Hosts) -> None:
    require("mpirun")
    words = ["mpirun", *ROOT, "--oversubscribe", "--mca", "plm_rsh_agent", str(hosts.agent), "--host", "n0:2,n1:1"]
    (record,) = run_words([*hosts.on("n0"), *words, "-np", "3", *PROGRAM]).records
    ranks = [(rank["host"], rank["local_rank"]) for rank in record["world"]["ranks"]]
    assert (record["world"]["launcher"], record["status"]) == ("openmpi", "ok")
    assert ranks == [("n0", 0), ("n0", 1), ("n1", 0)]


@pytest.mark.usefixtures("in_tmp")
def test_open_mpi_whose_rank_0_is_not_on_the_head_asks_for_an_address_and_takes_it(hosts: Hosts) -> None:
    require("mpirun")
    words = ["mpirun", *ROOT, "--oversubscribe", "--mca", "plm_rsh_agent", str(hosts.agent), "--host", "n0:1,n1:1"]
    refused = run_words([*hosts.on("login"), *words, "-np", "2", *PROGRAM])
    assert refused.returncode != 0
    assert "rank 0 is on n0, not where openmpi says" in refused.stderr
    assert refused.seconds < 30
    given = ["-x", "MASTER_ADDR=n0", "-x", "MASTER_PORT=29500"]
    (record,) = run_words([*hosts.on("login"), *words, *given, "-np", "2", *PROGRAM]).records
    assert [rank["host"] for rank in record["world"]["ranks"]] == ["n0", "n1"]


@pytest.mark.usefixtures("in_tmp")
def test_mpich_over_two_hosts_asks_for_an_address_and_takes_it(hosts: Hosts) -> None:
    require(MPICH)
    words = [*hosts.on("n0"), MPICH, "-launcher", "rsh", "-launcher-exec", str(hosts.agent), "-hosts", "n0:1,n1:1"]
    refused = run_words([*words, "-np", "2", *PROGRAM])
    assert refused.returncode != 0
    assert "MASTER_ADDR is not set: ranks on several hosts under mpich need it" in refused.stderr
    given = ["-genv", "MASTER_ADDR", "n0", "-genv", "MASTER_PORT", "29500"]
    (record,) = run_words([*words, *given, "-np", "2", *PROGRAM]).records
    assert [rank["host"] for rank in record["world"]["ranks"]] == ["n0", "n1"]


@pytest.mark.usefixtures("in_tmp")
def test_an_mpirun_whose_variables_do_not_reach_the_ranks_is_noticed() -> None:
    require("mpirun")
    bare = ["env", "-i", f"PATH={os.environ['PATH']}"]
    result = run_words(["mpirun", *ROOT, "--oversubscribe", "-np", "2", *bare, *PROGRAM])
    assert result.returncode != 0
    assert "started 2 copies of this run at once, each a world of one" in result.stderr
    assert result.records == []


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize(("script", "launcher"), [("torchrun.sh", "torchrun"), ("mpirun.sh", "openmpi")])
def test_the_launch_scripts_run(script: str, launcher: str) -> None:
    require("mpirun")
    result = run_words([str(LAUNCH / script), *SMALL], env={"NP": "3", "NPROC": "3", "LOGLEVEL": "ERROR"})
    assert (result.returncode, result.stderr) == (0, "")
    (record,) = result.records
    assert (record["world"]["launcher"], record["world"]["size"]) == (launcher, 3)

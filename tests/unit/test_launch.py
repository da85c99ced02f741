"""Launcher detection: each launcher of the table, the order among them, and environments that cannot be a world."""

from __future__ import annotations

import pytest

from distbench.launch import LAUNCHERS, Launch, LaunchError, detect

MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
PLAIN = {"RANK": "5", "WORLD_SIZE": "8"} | MASTER
TORCHRUN = PLAIN | {
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "PMIX_NAMESPACE": "prterun-host-1@1",
}
MPICH = {"PMI_FD": "9", "PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "3",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu-[01-02]",
    "SLURM_NODEID": "0",
}
SUBMITIT = {
    "SUBMITIT_LOCAL_GLOBALID": "1",
    "SUBMITIT_LOCAL_NTASKS": "3",
    "SUBMITIT_LOCAL_LOCALID": "1",
    "SUBMITIT_LOCAL_JOB_ID": "4711",
}
STALE_SLURM = SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "PMI_RANK": "0"}
ENVIRONMENTS = {
    "torchrun": TORCHRUN,
    "submitit": SUBMITIT,
    "env": PLAIN,
    "openmpi": OPENMPI,
    "mpich": MPICH,
    "slurm": SLURM,
}


def place(launch: Launch) -> tuple[str, int, int, int, int]:
    return (launch.launcher, launch.rank, launch.world_size, launch.local_rank, launch.local_world_size)


def test_every_launcher_of_the_table_is_tried_here() -> None:
    assert {launcher.name for launcher in LAUNCHERS} == set(ENVIRONMENTS)


def test_no_launcher_is_a_world_of_one() -> None:
    assert detect({"PATH": "/bin", "MASTER_ADDR": "left over"}) == Launch("single", 0, 1, 0, 1)


def test_torchrun_is_read_whole() -> None:
    launch = detect(TORCHRUN)
    assert place(launch) == ("torchrun", 5, 8, 1, 4)
    assert (launch.address, launch.port) == ("node0", 29500)
    assert launch.store_is_served
    assert launch.restarts == 2


def test_torchrun_without_its_own_store_is_not_asked_for_one() -> None:
    assert not detect(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}).store_is_served


def test_plain_variables_stand_for_one_host_unless_they_say_otherwise() -> None:
    assert place(detect(PLAIN)) == ("env", 5, 8, 5, 8)
    assert not detect(PLAIN).local_is_known  # the ranks find out when they meet
    assert place(detect(PLAIN | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"})) == ("env", 5, 8, 1, 4)


def test_a_plain_world_of_one_needs_no_address() -> None:
    assert place(detect({"RANK": "0", "WORLD_SIZE": "1"})) == ("env", 0, 1, 0, 1)


@pytest.mark.parametrize(("name", "environment"), [("openmpi", OPENMPI), ("mpich", MPICH)])
def test_mpirun_on_one_node_needs_no_master(name: str, environment: dict[str, str]) -> None:
    launch = detect(environment)
    assert launch.launcher == name
    assert (launch.address, launch.port) == (None, None)
    assert launch.world_size == launch.local_world_size == 3
    assert launch.rank == launch.local_rank == int(environment.get("PMI_RANK", "2"))


def test_slurms_tasks_per_node_are_read_in_its_own_spelling() -> None:
    assert place(detect(SLURM | MASTER)) == ("slurm", 3, 8, 3, 4)
    uneven = SLURM | MASTER | {"SLURM_STEP_TASKS_PER_NODE": "5,3"}
    assert detect(uneven).local_world_size == 5
    assert place(detect(uneven | {"SLURM_NODEID": "1", "SLURM_PROCID": "6", "SLURM_LOCALID": "1"})) == (
        "slurm",
        6,
        8,
        1,
        3,
    )
    with pytest.raises(LaunchError, match="SLURM_LOCALID=3: must be from 0 to"):
        detect(uneven | {"SLURM_NODEID": "1"})
    with pytest.raises(LaunchError, match="SLURM_STEP_TASKS_PER_NODE=4x2: must be tasks per node"):
        detect(uneven | {"SLURM_STEP_TASKS_PER_NODE": "4x2"})
    alone = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "4"}
    assert detect(SLURM | alone).address is None


def test_torchrun_wins_over_the_slurm_step_that_started_it() -> None:
    assert place(detect(STALE_SLURM | TORCHRUN)) == ("torchrun", 5, 8, 1, 4)


def test_plain_variables_win_over_a_slurm_step_around_them() -> None:
    assert detect(STALE_SLURM | PLAIN).launcher == "env"


def test_mpirun_inside_a_slurm_job_wins_over_slurm() -> None:
    assert place(detect(STALE_SLURM | OPENMPI))[:3] == ("openmpi", 2, 3)
    assert place(detect(STALE_SLURM | MPICH))[:3] == ("mpich", 1, 3)


def test_slurms_own_pmi_variables_are_not_taken_for_mpich() -> None:
    assert detect(SLURM | MASTER | {"PMI_RANK": "3", "PMI_SIZE": "8"}).launcher == "slurm"


def test_a_slurm_allocation_without_a_step_is_not_a_launch() -> None:
    """A shell inside salloc, or the batch script itself: one process, not a rank of many."""
    batch = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    launch = detect(batch | {"SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_JOB_NODELIST": "n[0-1]"})
    assert place(launch) == ("single", 0, 1, 0, 1)
    (note,) = launch.notes
    assert "job 77 has 8 tasks" in note
    assert "world of one" in note
    assert detect(batch | {"SLURM_NTASKS": "1"}).notes == ()


def test_a_slurm_task_without_its_step_is_refused() -> None:
    with pytest.raises(LaunchError, match="SLURM_STEP_ID is not set"):
        detect({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "3"})


INCOMPLETE = [
    *(
        ("torchrun", name)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    ),
    *(("env", name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")),
    *(("openmpi", name) for name in OPENMPI if name != "PMIX_NAMESPACE"),
    *(("mpich", name) for name in MPICH if name != "PMI_FD"),
    *(("slurm", name) for name in SLURM if name not in ("SLURM_JOB_ID", "SLURM_STEP_ID")),
]


@pytest.mark.parametrize(("launcher", "missing"), INCOMPLETE)
def test_an_incomplete_set_is_refused_naming_what_is_missing(launcher: str, missing: str) -> None:
    environment = {name: value for name, value in ENVIRONMENTS[launcher].items() if name != missing}
    with pytest.raises(LaunchError, match=rf"\b{missing}\b.*not set") as caught:
        detect(environment)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize("text", ["", "one", "-1", "1.5"])
def test_a_value_that_is_no_whole_number_is_refused_by_name(variable: str, text: str) -> None:
    with pytest.raises(LaunchError, match=rf"^{variable}={text}: must be a whole number"):
        detect(TORCHRUN | {variable: text})


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        (TORCHRUN | {"RANK": "8"}, "RANK=8"),
        (PLAIN | {"RANK": "9"}, "RANK=9"),
        (OPENMPI | {"OMPI_COMM_WORLD_RANK": "3"}, "OMPI_COMM_WORLD_RANK=3"),
        (MPICH | {"PMI_RANK": "3"}, "PMI_RANK=3"),
        (SLURM | MASTER | {"SLURM_PROCID": "8"}, "SLURM_PROCID=8"),
        (PLAIN | {"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_a_rank_outside_the_world_is_refused(environment: dict[str, str], variable: str) -> None:
    with pytest.raises(LaunchError, match=rf"^{variable}: must be from 0 to "):
        detect(environment)


HEAD = "484573184.0;tcp://10.77.0.2,10.78.0.2:47211;tcp6://[fd77::2]:45121"


@pytest.mark.parametrize(
    "environment",
    [OPENMPI | {"OMPI_COMM_WORLD_SIZE": "6"}, MPICH | {"PMI_SIZE": "6"}],
    ids=["openmpi without its head", "mpich"],
)
def test_several_hosts_without_an_address_are_refused_before_they_wait_for_each_other(
    environment: dict[str, str],
) -> None:
    with pytest.raises(LaunchError, match=r"MASTER_ADDR is not set.*several hosts.*MASTER_PORT"):
        detect(environment)


def test_several_hosts_meet_where_their_launcher_says_and_never_where_another_launch_does() -> None:
    slurm = [detect(SLURM | {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank // 4)}).places for rank in (0, 7)]
    assert slurm[0] == slurm[1]
    assert {host for host, _ in slurm[0]} == {"gpu-01"}
    assert all(20000 <= port < 30000 for _, port in slurm[0])
    assert not set(slurm[0]) & set(detect(SLURM | {"SLURM_STEP_ID": "1"}).places)
    openmpi = detect(OPENMPI | {"OMPI_COMM_WORLD_SIZE": "6", "OMPI_MCA_orte_hnp_uri": HEAD}).places
    assert {host for host, _ in openmpi} == {"10.77.0.2", "10.78.0.2", "fd77::2"}
    assert detect(SLURM | MASTER).places == (("node0", 29500),)


def test_slurm_steps_whose_rank_0_is_elsewhere_or_whose_nodes_are_unreadable_are_refused() -> None:
    with pytest.raises(LaunchError, match=r"rank 0 is not on the step's first node: set MASTER_ADDR"):
        detect(SLURM | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"})
    with pytest.raises(LaunchError, match=r"SLURM_STEP_NODELIST=n\[: must be a node list"):
        detect(SLURM | {"SLURM_STEP_NODELIST": "n["})


@pytest.mark.parametrize("name", ["PMIX_RANK", "PMI_RANK", "FLUX_TASK_RANK"])
def test_a_rank_by_an_unknown_launcher_is_never_a_silent_world_of_one(name: str) -> None:
    with pytest.raises(LaunchError, match=rf"^{name}=1 is set by a launcher that distbench does not know"):
        detect({name: "1"})


def test_an_empty_address_and_an_impossible_port_are_refused() -> None:
    with pytest.raises(LaunchError, match="MASTER_ADDR is empty"):
        detect(PLAIN | {"MASTER_ADDR": ""})
    for port in ("0", "70000"):
        with pytest.raises(LaunchError, match=f"MASTER_PORT={port}: must be from 1 to 65535"):
            detect(PLAIN | {"MASTER_PORT": port})


def test_ranks_of_one_launch_agree_on_its_name_and_two_launches_do_not() -> None:
    ranks = [detect(OPENMPI | {"OMPI_COMM_WORLD_RANK": str(rank)}).job for rank in range(3)]
    assert len(set(ranks)) == 1
    assert detect(OPENMPI | {"PMIX_NAMESPACE": "prterun-host-2@1"}).job not in ranks
    alone = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "4"}
    steps = [detect(SLURM | alone | {"SLURM_STEP_ID": step}).job for step in ("0", "1")]
    assert steps[0] != steps[1]


def test_a_local_rank_outside_its_host_and_a_broken_restart_count_are_refused() -> None:
    with pytest.raises(LaunchError, match=r"^OMPI_COMM_WORLD_LOCAL_RANK=3: must be from 0 to"):
        detect(OPENMPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"})
    with pytest.raises(LaunchError, match=r"^TORCHELASTIC_RESTART_COUNT=x: must be a whole number"):
        detect(OPENMPI | {"TORCHELASTIC_RESTART_COUNT": "x"})

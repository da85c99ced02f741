"""Starting distbench as a person does, and knowing afterwards that nothing of it is left.

Every process started here carries a mark of its test in its environment, and so does everything that it starts in turn
(torchrun's workers, mpirun's ranks): /proc tells which of them are still alive.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

MARK = "DISTBENCH_TEST_MARK"
MODULE = ("-m", "distbench")
RESULTS = "results.jsonl"
LAUNCHER_PREFIXES = (
    *(
        "RANK",
        "WORLD_SIZE",
        "LOCAL_",
        "GROUP_",
        "ROLE_",
        "MASTER_",
        "TORCHELASTIC_",
        "TORCH_",
        "OMPI_",
        "PMIX_",
        "PMI_",
    ),
    *("MPI_", "PRTE_", "SLURM_", "SUBMITIT_", "GLOO_", "NCCL_", "OMP_", "MKL_", "OPENBLAS_", "HYDRA_", "PET_"),
)
"""What a launcher, or a shell that set threads, leaves in the environment: no test may see it."""


def is_launchers(name: str) -> bool:
    return name.startswith(LAUNCHER_PREFIXES)


# --- launchers: pure functions from the number of ranks to the words before the program ------------------------------


@dataclass(frozen=True)
class Launcher:
    """How the ranks are started."""

    name: str
    ranks: int = 1
    prefix: tuple[str, ...] = ()
    """Words before python, such as taskset's."""

    def commands(self, program: Sequence[str]) -> list[list[str]]:
        """One command for each process that the test itself starts: one, or one per rank for plain variables."""
        python = sys.executable
        if self.name == "torchrun":
            torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={self.ranks}"]
            return [[*self.prefix, python, *torchrun, *program]]
        if self.name == "words":
            return [list(self.prefix)]
        if self.name == "mpirun":
            as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
            words = ["mpirun", *as_root, "--oversubscribe", "-np", str(self.ranks)]
            return [[*self.prefix, *words, python, *program]]
        return [[*self.prefix, python, *program] for _ in range(self.ranks)]

    def environments(self) -> list[dict[str, str]]:
        """What each of those processes finds set."""
        if self.name == "torchrun":
            return [{"LOGLEVEL": "ERROR"}]  # else it speaks of OMP_NUM_THREADS on stderr
        if self.name != "env":
            return [{}]
        common = {"WORLD_SIZE": str(self.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        return [{"RANK": str(rank), **common} for rank in range(self.ranks)]


ALONE = Launcher("alone")


def torchrun(ranks: int, prefix: Sequence[str] = ()) -> Launcher:
    return Launcher("torchrun", ranks, tuple(prefix))


def mpirun(ranks: int) -> Launcher:
    require("mpirun")
    return Launcher("mpirun", ranks)


def plain(ranks: int) -> Launcher:
    """RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand: no agent watches over the ranks."""
    return Launcher("env", ranks)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


# --- what a machine has ----------------------------------------------------------------------------------------------


def missing(reason: str) -> None:
    """Skip the test; on CI a test that cannot run is a failure."""
    if os.environ.get("DISTBENCH_CI"):
        pytest.fail(f"{reason}, and DISTBENCH_CI is set")
    pytest.skip(reason)


def require(program: str) -> None:
    if shutil.which(program) is None:
        missing(f"{program} is not installed")


def require_root() -> None:
    if os.geteuid() != 0:
        missing("needs root")


# --- running ---------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What became of a run."""

    returncode: int
    stdout: str
    stderr: str
    records: list[dict[str, Any]]
    """Every line of every results.jsonl below the working folder, in order; each fits the schema."""
    folders: list[Path] = field(default_factory=list)
    """Where those files lie."""
    seconds: float = 0.0
    returncodes: list[int] = field(default_factory=list)
    """Of each process that the test started (plain variables: one per rank)."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.returncode, self.stdout, self.stderr, self.records))

    @property
    def statuses(self) -> list[str]:
        return [record["status"] for record in self.records]


_SET = {"PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
"""In every run: output as it comes, and the CPU, on a machine with GPUs too."""


class Running:
    """A run that has been started; `wait` ends it."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], mark: str, cwd: Path, output: list[Path]) -> None:
        self.processes, self.mark, self.cwd, self.output = processes, mark, cwd, output
        self.began = time.monotonic()

    def stdout(self) -> str:
        return "".join(path.with_suffix(".out").read_text() for path in self.output)

    def stderr(self) -> str:
        return "".join(path.with_suffix(".err").read_text() for path in self.output)

    def await_text(self, text: str, count: int = 1, timeout_s: float = 60) -> None:
        """Until stdout holds `text` so many times."""
        self._await(lambda: self.stdout().count(text) >= count, f"no {text!r} on stdout", timeout_s)

    def await_records(self, count: int, timeout_s: float = 60) -> None:
        self._await(lambda: len(read_records(self.cwd)[0]) >= count, f"fewer than {count} records", timeout_s)

    def await_quiet_s(self, seconds: float) -> None:
        """Let the run go on for a while; fails if it ends meanwhile."""
        time.sleep(seconds)
        if any(process.poll() is not None for process in self.processes):
            pytest.fail(f"ended by itself:\n{self.stdout()}\n--- stderr\n{self.stderr()}")

    def _await(self, is_there: Callable[[], bool], complaint: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_there():
            ended = all(process.poll() is not None for process in self.processes)
            if ended or time.monotonic() > deadline:
                told = f"{self.stdout()}\n--- stderr\n{self.stderr()}"
                pytest.fail(f"{complaint} {'though the run ended' if ended else f'in {timeout_s:g} s'}:\n{told}")
            time.sleep(0.02)

    def pid_of_rank(self, rank: int) -> int:
        """The process that computes as this rank (its launcher set RANK, or Open MPI's name for it)."""
        names = (f"RANK={rank}".encode(), f"OMPI_COMM_WORLD_RANK={rank}".encode())
        for pid in marked(self.mark):
            if any(name in _environ(pid) for name in names):
                return pid
        raise AssertionError(f"no process of rank {rank} among {marked(self.mark)}")

    def signal(self, number: signal.Signals, *, to_all: bool = False) -> None:
        """To what the test started; with `to_all` to what that started too, as a terminal's Ctrl-C does."""
        for process in self.processes:
            if to_all:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    def await_gone(self, timeout_s: float) -> float:
        """Seconds until no process of the run is alive."""
        began = time.monotonic()
        while (alive := marked(self.mark)) or any(process.poll() is None for process in self.processes):
            if time.monotonic() - began > timeout_s:
                told = "\n".join(describe(pid) for pid in alive)
                pytest.fail(f"alive after {timeout_s:g} s:\n{told}\n--- stderr\n{self.stderr()}")
            time.sleep(0.02)
        return time.monotonic() - began

    def wait(self, timeout_s: float = 60) -> Result:
        deadline = self.began + timeout_s
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                told = "\n".join(describe(pid) for pid in marked(self.mark))
                pytest.fail(
                    f"still running after {timeout_s:g} s:\n{told}\n{self.stdout()}\n--- stderr\n{self.stderr()}"
                )
        seconds = time.monotonic() - self.began
        records, folders = read_records(self.cwd)
        for record in records:
            validate(record)
        codes = [process.returncode for process in self.processes]
        worst = next((code for code in codes if code != 0), 0)
        return Result(worst, self.stdout(), self.stderr(), records, folders, seconds, codes)


def start(
    arguments: Sequence[str],
    launcher: Launcher = ALONE,
    *,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    program: Sequence[str] = MODULE,
    prefixes: Sequence[Sequence[str]] | None = None,
    mark: str | None = None,
) -> Running:
    """Start `python <program> <arguments>` under a launcher, in the current folder unless told otherwise.

    prefixes: for plain variables, words before each rank's command, such as unshare's. mark: where several tests share
    the run, else this test's own.
    """
    cwd = Path.cwd() if cwd is None else cwd
    processes, output = [], []
    mark = mark or os.environ[MARK]
    pairs = zip(launcher.commands(program), launcher.environments(), strict=True)
    for index, (command, variables) in enumerate(pairs):
        before = list(prefixes[index]) if prefixes else []
        base = cwd / f".told-{time.monotonic_ns()}-{index}"
        output.append(base)
        with base.with_suffix(".out").open("wb") as out, base.with_suffix(".err").open("wb") as err:
            processes.append(
                subprocess.Popen(
                    [*before, *command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=cwd,
                    start_new_session=True,
                    env={**os.environ, **_SET, MARK: mark, **variables, **(env or {})},
                )
            )
    return Running(processes, mark, cwd, output)


def run(arguments: Sequence[str], launcher: Launcher = ALONE, *, timeout_s: float = 90, **options: Any) -> Result:
    """Start, wait and read what it left: unpacks as (returncode, stdout, stderr, records)."""
    return start(arguments, launcher, **options).wait(timeout_s)


def run_words(words: Sequence[str], *, env: dict[str, str] | None = None, timeout_s: float = 90) -> Result:
    """Any command line in the current folder, such as srun's; python and torchrun are those of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return start([], Launcher("words", 1, tuple(words)), env={"PATH": path, **(env or {})}, program=()).wait(timeout_s)


def run_ok(arguments: Sequence[str], launcher: Launcher = ALONE, **options: Any) -> Result:
    """A run that must go well: status 0, nothing on stderr, text without control codes, every record ok."""
    result = run(arguments, launcher, **options)
    assert (result.returncode, result.stderr) == (0, ""), f"{result.stdout}\n--- stderr\n{result.stderr}"
    assert not (codes := control_codes(result.stdout)), codes
    assert set(result.statuses) <= {"ok"}, [record["reason"] for record in result.records]
    return result


def control_codes(text: str) -> set[str]:
    """What a terminal would act on: nothing of that belongs into a file or a pipe."""
    return {repr(letter) for letter in text if ord(letter) < 32 and letter != "\n"}


def refusal(result: Result) -> str:
    """distbench's one line on stderr, without its name; fails where there are more or a traceback."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("distbench: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr or "torch/distributed" in result.stderr, result.stderr
    return lines[0].removeprefix("distbench: ")


# --- records ---------------------------------------------------------------------------------------------------------


def read_records(folder: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """All records below a folder, and the folders they lie in."""
    files = sorted(path for path in folder.glob("*/**/" + RESULTS))
    # What follows the last line's end is a line that is being written, or that a full disk cut short.
    lines = [line for path in files for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    return [json.loads(line, parse_constant=_refuse_constant) for line in lines], [path.parent for path in files]


def validate(record: dict[str, Any]) -> None:
    """Fails where a record does not fit tests/record.schema.json."""
    _validator().validate(record)


@cache
def _validator() -> Any:
    import jsonschema  # here, since a machine with a GPU may run tests/gpu without it

    schema = json.loads((Path(__file__).parent / "record.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def _refuse_constant(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


# --- processes -------------------------------------------------------------------------------------------------------


def marked(mark: str) -> list[int]:
    """Live processes that carry the mark, other than this one."""
    wanted = f"{MARK}={mark}".encode()
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [pid for pid in pids if pid != os.getpid() and wanted in _environ(pid)]


def end_all(mark: str) -> list[str]:
    """Kill what carries the mark; returns what was there."""
    found = [(pid, describe(pid)) for pid in marked(mark)]
    for pid, _ in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return [told for _, told in found]


def describe(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return f"{pid} (gone)"
    return f"{pid} state {state}: {command}"


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or not ours; a zombie's reads empty
        return []

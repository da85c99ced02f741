"""The verbs as typed, on a real 3-rank sweep with a failed cell, and on a laptop: without torch, without the extras."""

from __future__ import annotations

import csv
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import MARK, Result, require, run, start, torchrun

from distbench.show.usage import USAGE
from distbench.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "tests" / "records"
SWEEP = [
    "-m",
    "workload=square",
    "workload.n=64,0",
    "workload.dtype=float32,float64",
    "collect=gather",
    "measure=quick",
]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, marked_module: str) -> Path:
    """The folder of a sweep on three ranks: two cells are ok, two have no rows."""
    result = start(SWEEP, torchrun(3), cwd=tmp_path_factory.mktemp("sweep"), mark=marked_module).wait(120)
    assert result.statuses.count("ok") == 2
    assert result.statuses.count("failed") == 2
    return result.folders[0]


def verb(*words: str) -> Result:
    """`distbench WORDS`, which must say nothing on stderr."""
    result = run(words)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result


@pytest.mark.usefixtures("in_tmp")
def test_a_sweep_with_a_failed_cell_is_reported_in_every_form(sweep: Path) -> None:
    for form in ("md", "csv", "terminal"):
        told = verb("report", str(sweep), "--format", form).stdout
        assert "a whole number from 1" in told, form
        assert "float64" in told
    path = Path(verb("report", str(sweep)).stdout.strip())
    assert path == sweep / "report.html"
    page = path.read_text()
    assert "a whole number from 1" in page
    assert "Timeline of one sample" in page  # records of this version keep the starts


@pytest.mark.usefixtures("in_tmp")
def test_the_starts_of_the_ranks_are_in_the_records(sweep: Path) -> None:
    for line in (sweep / "results.jsonl").read_text().splitlines():
        item = json.loads(line)
        if item["status"] == "ok":
            starts = item["samples"]["start_s"]
            assert len(starts) == 3
            for index, skew_s in enumerate(item["samples"]["start_skew_s"]):
                of_sample = [times[index] for times in starts]
                assert min(of_sample) == 0
                assert max(of_sample) == skew_s


@pytest.mark.usefixtures("in_tmp")
def test_a_sweep_with_a_failed_cell_is_compared_and_exported(sweep: Path) -> None:
    told = run(["compare", str(sweep), str(sweep)])
    assert told.returncode == 0  # what failed before and fails now is no change
    assert "BASE is failed: workload.m=0" in told.stdout
    mended = [json.loads(line) for line in (sweep / "results.jsonl").read_text().splitlines()]
    mended[2:] = [mended[0] | {"cell": item["cell"], "config": item["config"]} for item in mended[2:]]
    Path("base.jsonl").write_text("".join(json.dumps(item) + "\n" for item in mended))
    told = run(["compare", "base.jsonl", str(sweep)])
    assert told.returncode == 1
    assert told.stdout.count("NEW is failed: workload.m=0") == 2
    verb("export", str(sweep), "-o", "out")
    with Path("out/cells.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)].count("failed") == 2
    with Path("out/samples.csv").open() as file:
        assert {row["dtype"] for row in csv.DictReader(file)} == {"float32", "float64"}


@pytest.mark.usefixtures("in_tmp")
def test_a_run_is_followed_from_another_shell(marked_module: str) -> None:
    """It waits for the first record, tells each as it comes, and Ctrl-C ends it with status 0."""
    Path("out").mkdir()
    watching = start(["report", "--follow", "out"])
    time.sleep(1)
    running = start([*SWEEP, "hydra.sweep.dir=out"], torchrun(3))
    watching.await_text("ok ", 2, 90)
    watching.await_text("failed ", 2, 90)
    running.wait(90)
    watching.signal(signal.SIGINT)
    result = watching.wait(200)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 4


def blocked(modules: str, *words: str) -> subprocess.CompletedProcess[str]:
    """distbench in a Python that cannot import these modules."""
    script = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules.split()!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
from distbench.__main__ import main
sys.exit(main({list(words)!r}))
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize(
    "words",
    [
        ["report", "RUN"],
        ["report", "RUN", "--format", "md"],
        ["report", "RUN", "--format", "terminal"],
        ["compare", "RUN", "RUN"],
        ["export", "RUN", "--format", "parquet", "-o", "out"],
        ["export", "RUN", "--format", "openmetrics", "-o", "out"],
        ["list"],
        ["--help"],
    ],
    ids=" ".join,
)
def test_a_laptop_needs_no_torch(words: list[str]) -> None:
    path = Path("run.jsonl")
    path.write_bytes((RECORDS / "square-3-ranks.jsonl").read_bytes())
    done = blocked("torch", *[str(path) if word == "RUN" else word for word in words])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("plotly", ["report", "RUN"]),
        ("scipy", ["compare", "RUN", "RUN"]),
        ("pyarrow", ["export", "RUN", "--format", "parquet"]),
        ("prometheus_client", ["export", "RUN", "--format", "openmetrics"]),
    ],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(module: str, words: list[str]) -> None:
    path = str(RECORDS / "square-3-ranks.jsonl")
    done = blocked(module, *[path if word == "RUN" else word for word in words])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'distbench[report]'" in done.stderr
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("in_tmp")
def test_a_misspelt_verb_or_run_is_answered_with_the_nearest() -> None:
    told = run(["reprot", "x"])
    assert (told.returncode, told.stderr.count("\n")) == (2, 1)
    assert "did you mean distbench report?" in told.stderr
    told = run(["report", str(RECORDS / "square-3-rank.jsonl")])
    assert told.returncode == 2
    assert "square-3-ranks.jsonl" in told.stderr or "square-1-rank.jsonl" in told.stderr


@pytest.mark.usefixtures("in_tmp")
def test_output_into_a_closed_pipe_ends_quietly() -> None:
    script = f"{sys.executable} -m distbench report {RECORDS} --format csv | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("run,cell,")
    assert done.stderr == ""


def test_the_help_fits_one_screen_and_names_every_verb() -> None:
    lines = USAGE.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert all(f"distbench {name} " in USAGE or f"distbench {name}\n" in USAGE for name in VERBS)


@pytest.mark.usefixtures("in_tmp")
def test_the_commands_of_the_help_work_when_pasted() -> None:
    """All that stand under Try, in a shell; the sizes of the two long ones are made small."""
    begin = USAGE.index("Try\n")
    lines = [line[2:52].strip() for line in USAGE[begin : USAGE.index("\n\n", begin)].splitlines()[1:]]
    assert len(lines) == 5
    here = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    small = " workload.m=3000 measure=quick"
    for line in lines:
        words = line + (small if "workload" not in line and not line.endswith("list") else "")
        done = subprocess.run(
            ["bash", "-c", words], capture_output=True, text=True, timeout=120, env=os.environ | {"PATH": here}
        )
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.usefixtures("in_tmp")
def test_list_tells_workloads_and_experiments_one_line_each() -> None:
    told = verb("list").stdout
    for group, form in (("workload", "workload="), ("experiment", "+experiment="), ("measure", "measure=")):
        for file in (ROOT / "conf" / group).glob("*.yaml"):
            (line,) = (line for line in told.splitlines() if line.split()[:1] == [f"{form}{file.stem}"])
            assert len(line.split()) > 2


class Shell:
    """An interactive bash on a terminal of its own, with distbench's completion loaded."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if name not in ("PATH", "PS1")}
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**kept, "PATH": path, "PS1": "$ ", "TERM": "dumb", MARK: os.environ[MARK]},
            start_new_session=True,
        )
        os.close(slave)
        self.type(
            'bind "set completion-query-items 0"; bind "set page-completions off"; bind "set enable-bracketed-paste off"\n'
        )
        self.type('eval "$(distbench -sc install=bash)"; echo rea""dy\n')
        self.await_text("ready")

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def await_text(self, *texts: str, timeout_s: float = 60) -> str:
        told, deadline = "", time.monotonic() + timeout_s
        while not all(text in told for text in texts):
            assert time.monotonic() < deadline, f"no {texts} in {told!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                told += os.read(self.master, 65536).decode(errors="replace")
        return told

    def completed(self, line: str, *texts: str) -> str:
        """What the terminal shows after the line and two Tabs; the line is then wiped."""
        self.type(line + "\t")
        time.sleep(0.3)
        self.type("\t")
        told = self.await_text(*texts)
        self.type("\x15")  # Ctrl-U
        return told

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.mark.usefixtures("in_tmp")
def test_the_tab_key_completes_verbs_settings_options_and_files() -> None:
    require("bash")
    Path("myresults").mkdir()
    shell = Shell()
    try:
        shell.completed("distbench rep", "report")
        shell.completed("distbench report --fo", "--format", "--follow")
        shell.completed("distbench report myre", "myresults")
        shell.completed("distbench workload=gallery_", "gallery_small")
        shell.completed("distbench workload.dt", "workload.dtype")
        shell.completed("distbench workload=", "workload=batched", "workload=square")
    finally:
        shell.end()

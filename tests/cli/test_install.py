"""The package works as a wheel, as an editable install and from a checkout, from any folder, with its configuration.

Each gets a virtual environment of its own, which borrows torch and the rest from the one that runs the tests.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import control_codes, missing, read_records, validate

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("wheel", "editable", "checkout")


def _venv(folder: Path, kind: str) -> Path:
    """A virtual environment with distbench of that kind; returns its bin folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    if kind != "checkout":
        source = ["--editable", str(ROOT)] if kind == "editable" else [str(ROOT)]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
        told = subprocess.run([*pip, "install", "--quiet", "--no-deps", *source], capture_output=True, text=True)
        if told.returncode != 0 and "No matching distribution found for hatchling" in told.stderr:
            missing("no package index to build with")
        assert told.returncode == 0, told.stderr
    # Only now, so that pip saw an empty environment. The .pth files of the borrowed folders are not read: an editable
    # distbench in them stays out of sight.
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    borrowed = Path(spec.origin).parents[1]
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    return folder / "bin"


@pytest.mark.parametrize("kind", KINDS)
def test_it_works_installed_as(kind: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binaries = _venv(in_tmp / "venv", kind)
    work = in_tmp / "elsewhere"
    work.mkdir()
    command = [str(binaries / "distbench")]
    if kind == "checkout":
        command = [str(binaries / "python"), "-m", "distbench"]
        monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def told(*words: str) -> str:
        done = subprocess.run([*command, *words], cwd=work, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        assert not control_codes(done.stdout)
        return done.stdout

    assert told("--version").startswith("distbench 0.")
    told("workload=square", "workload.n=64", "measure=quick")
    (record,), _ = read_records(work)
    validate(record)
    assert record["status"] == "ok"
    sweep = told("-m", "hydra/launcher=torchrun", "workload=square", "workload.n=64", "measure=quick")
    assert "best: " in sweep  # Hydra found our plugin

    where = subprocess.run(
        [str(binaries / "python"), "-c", "import distbench.compose as c; print(c.__file__, c.conf_dir())"],
        cwd=work,
        capture_output=True,
        text=True,
        check=True,
    )
    module, conf = (Path(word) for word in where.stdout.split())
    if kind == "wheel":
        assert module.is_relative_to(in_tmp)
        assert conf == module.parent / "conf"
        shipped = {path.relative_to(conf) for path in conf.rglob("*.yaml")}
        assert shipped == {path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml")}
        assert not list(module.parents[1].glob("tests*"))
    else:
        assert conf == ROOT / "conf"

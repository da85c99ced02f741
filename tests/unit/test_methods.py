"""The table of ways to answer a query, from records alone."""

from __future__ import annotations

from typing import Any

from distbench.show.methods import methods_table


def record(
    engine: str, drive: str, path: str, time_s: float | None, collect: str = "host", m: int = 600
) -> dict[str, Any]:
    workload = {"batch": 1, "m": m, "n": 4, "k": 8, "dtype": "float64", "fill": "normal", "upload": "b"}
    config = {"workload": workload, "split": "m", "engine": engine, "drive": drive, "collect": collect, "path": path}
    told: dict[str, Any] = {"config": config, "world": {"size": 3}, "status": "ok", "reason": None}
    told |= {"result": {"time_s": time_s, "fill_s": 0.5}, "verification": {"ok": True}}
    return told if time_s else told | {"status": "skipped", "reason": "no CuPy", "result": None, "verification": None}


LOOP = record("torch", "loop", "fresh", 2.0)


def test_speed_ups_are_over_torchs_loop_and_a_skipped_method_says_why() -> None:
    table = methods_table(
        [
            record("torch", "process", "shared", 0.5),
            LOOP,
            record("cupy", "loop", "fresh", None),
            record("a", "b", "c", 1),
        ]
    )
    rows = {line[:14].strip(): line for line in table[2:]}
    assert list(rows) == ["torch loop", "CuPy loop", "shared"]
    assert " 1 x  yes" in rows["torch loop"]
    assert rows["torch loop"].endswith("41.74 s, 2.94 s")
    assert " 4 x  yes" in rows["shared"]
    assert "skipped: no CuPy; published 24.69 s, 4.01 s" in rows["CuPy loop"]


def test_a_missing_base_leaves_no_speed_up() -> None:
    table = methods_table([record("torch", "loop", "fresh", None), record("torch", "process", "shared", 0.5)])
    assert not any(" x " in line for line in table[2:])
    assert table[-1].startswith("no speed-ups")


def test_other_sweeps_and_mixed_sizes_make_no_table() -> None:
    assert methods_table([]) == methods_table([LOOP]) == []
    assert methods_table([record("torch", "process", "shared", 1.0), record("torch", "process", "fresh", 1.0)]) == []
    assert methods_table([LOOP, record("torch", "process", "shared", 1.0, m=700)]) == []

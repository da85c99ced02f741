"""numpy, torch and CuPy side by side on one problem, from records alone: the table of experiment=cpu_vs_gpu."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

from distbench.config import DType
from distbench.dtypes import FACTS
from distbench.layout import whole
from distbench.loop import LOOPS, REPEATS
from distbench.show.units import rate, seconds, size
from distbench.stats import line_fit, median

_SIZES = ("batch", "m", "n", "k", "fill", "upload")
_NAMES = {
    ("numpy", "cpu"): "numpy",
    ("torch", "cpu"): "torch CPU",
    ("torch", "cuda"): "torch GPU",
    ("cupy", "cuda"): "CuPy GPU",
}


def notebook_table(records: list[dict[str, Any]]) -> list[str]:
    """Lines of text; none unless a numpy cell and another one looped over the same problem (measure.loop)."""
    kept = [record for record in records if record["config"]["measure"].get("loop")]
    problems = {tuple(record["config"]["workload"][key] for key in _SIZES) for record in kept}
    done = [record for record in kept if record["result"] is not None]
    if len(problems) != 1 or len(done) < 2 or not any(_name(record) == "numpy" for record in done):
        return []
    w = kept[0]["config"]["workload"]
    lines = [f"{w['batch']} products of {w['m']} x {w['k']} by {w['k']} x {w['n']}"]
    lines.append(
        f"{'':<19}{'best':>10}  {f'{LOOPS} loops x {REPEATS} repeats':<25}{'rate':>14}{'speed-up':>10}"
        f"{'no sync':>10}{'copy A, B':>11}{'A':>10}{'B':>10}{'C':>10}"
    )
    bases = {_dtype(record): record for record in done if _name(record) == "numpy"}
    for record in kept:
        lines.append(_row(record, bases.get(_dtype(record))))
    lines += [line for record in done if (line := _straight(record))]
    lines += dict.fromkeys(line for record in done if record["config"]["device"] == "cpu" for line in _pools(record))
    lines.append("speed-up: over numpy's best in the same dtype; - where the threads differ")
    lines.append(
        "no sync: the clock read as the product's call returns, which is no product's time where it returns earlier"
    )
    shares = [f"{_name(record)} {_dtype(record)} {_called_share(record):.2%}" for record in done]
    lines.append(f"its share of a run with the wait: {', '.join(shares)}")
    return lines


def _name(record: dict[str, Any]) -> str:
    config = record["config"]
    if record["result"] is None:
        return str(config["engine"]) + (" GPU" if config["stream"] != "default" else "")
    return _NAMES.get((config["engine"], config["device"]), str(config["engine"]))


def _dtype(record: dict[str, Any]) -> str:
    return str(record["config"]["workload"]["dtype"])


def _row(record: dict[str, Any], base: dict[str, Any] | None) -> str:
    result = record["result"]
    title = f"{_name(record):<10} {_dtype(record):<8}"
    if result is None:
        return f"{title}{record['status']}: {record['reason']}"
    best, loop = result["best_s"], result["loop"]
    told = loop["timeit_s"]
    mean = "-" if told is None else f"{seconds(told[0])} ± {seconds(told[1])}"
    comparable = base is not None and (record["config"]["device"] != "cpu" or _threads(base) == _threads(record))
    speed_up = f"{base['result']['best_s'] / best:.4g} x" if base is not None and comparable else "-"
    return (
        f"{title}{seconds(best):>10}  {mean:<25}{rate(record['work']['flop'] / best / 1e12):>14}{speed_up:>10}"
        f"{seconds(min(loop['unsynchronised_s'])):>10}{seconds(loop['copy_s']):>11}"
        + "".join(f"{size(count):>10}" for count in _memory(record))
    )


def _straight(record: dict[str, Any]) -> str | None:
    times = record["result"]["loop"]["cumulative_s"]
    fit = line_fit(times)
    if fit is None:
        return None
    return (
        f"{_name(record)}, {_dtype(record)}: {len(times)} runs in {seconds(times[-1])}, a line of {seconds(fit[0])} a run, "
        f"off it by {fit[1]:.1%} of the whole at most"
    )


def _memory(record: dict[str, Any]) -> list[int]:
    """Bytes of A, of B and of C."""
    w = record["config"]["workload"]
    facts = FACTS[DType(w["dtype"])]
    block = whole(w["batch"], w["m"], w["n"], w["k"])
    shapes = (block.a_shape, facts.itemsize), (block.b_shape, facts.itemsize), (block.c_shape, facts.c_itemsize)
    return [prod(shape) * itemsize for shape, itemsize in shapes]


def _called_share(record: dict[str, Any]) -> float:
    """A call without the wait ÷ a run with it, medians of the loops."""
    loop = record["result"]["loop"]
    runs = [after - before for before, after in pairwise([0.0, *loop["cumulative_s"]])]
    return median(loop["unsynchronised_s"]) / median(runs)


def _threads(record: dict[str, Any]) -> list[int]:
    return [rank["threads"] for rank in record["world"]["ranks"]]


def _pools(record: dict[str, Any]) -> list[str]:
    """The libraries that multiplied on the CPU, with threads and kernels; torch's own, where it is not among the pools."""
    kernels = record["environment"].get("torch_kernels")
    if record["config"]["engine"] == "torch" and kernels is not None:
        libraries = " and ".join(kernels["libraries"]) or "no library named"
        return [f"torch: {libraries}: {kernels['threads']} threads, kernels {kernels['capability']}"]
    return [
        f"{pool['internal_api']} {pool.get('version', '')}: {pool['num_threads']} threads, "
        f"kernels {pool.get('architecture', 'not told')}"
        for pool in record["environment"]["thread_pools"]
        if pool.get("internal_api") != "openmp"  # torch's
    ]

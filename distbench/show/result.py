"""One cell's record as a table: what it was, how fast, what bounds it, whether it is right."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from distbench.show.peaks import peak_tflops
from distbench.show.units import rate, seconds, size

_PHASE_NAMES = {"h2d": "upload", "gemm": "GEMM", "collect": "collect"}


def result_lines(record: dict[str, Any]) -> list[Text | str]:
    """The lines to print for one record."""
    if record["status"] != "ok":
        return [Text(f"{record['status']}: {record['reason']}", style="bold red")]
    config, result = record["config"], record["result"]
    lines: list[Text | str] = ["", Text(_title(config, record["world"]["size"]), style="bold")]
    lines.append(Text(_headline(record), style="bold green"))
    lines += [Text(line) for line in _table(record)]
    lines += [Text(f"  {line}") for line in _facts(record)]
    if not result["converged"]:
        lines.append(Text(f"  not converged: {_why_not(record)}", style="yellow"))
    return lines


def _title(config: dict[str, Any], world: int) -> str:
    w = config["workload"]
    batch = f"{w['batch']} x " if w["batch"] > 1 else ""
    return (
        f"{w['name']}: {batch}[{w['m']} x {w['k']}] · [{w['k']} x {w['n']}], {w['dtype']}, {w['fill']}, {config['engine']}, "
        f"split {config['split']} over {world}, collect {config['collect']} ({config['path']})"
    )


def _headline(record: dict[str, Any]) -> str:
    result = record["result"]
    text = f"GEMM alone {rate(result['gemm_tflops'])}, total {rate(result['tflops'])}: {_bound(record)}"
    share = _peak_share(record)
    return f"{text}; {share}" if share else text


def _bound(record: dict[str, Any]) -> str:
    """What takes the most of the span, in words."""
    result = record["result"]
    shares = {name: value / result["time_s"] for name, value in result["phases_s"].items()}
    name = max(shares, key=lambda key: shares[key])
    return f"bound by the {_PHASE_NAMES.get(name, name)} ({min(1.0, shares[name]):.0%} of the span)"


def _peak_share(record: dict[str, Any]) -> str | None:
    """The GEMM's share of the dense peak of the distinct devices that computed it."""
    ranks, dtype = record["world"]["ranks"], record["config"]["workload"]["dtype"]
    devices = {(rank["host"], rank["device_uuid"]): rank["device_name"] for rank in ranks if rank["device_uuid"]}
    peaks = [peak_tflops(name, dtype) for name in devices.values()]
    known = [peak for peak in peaks if peak is not None]
    if not known or len(known) < len(peaks) or record["result"]["gemm_tflops"] is None:
        return None
    return f"GEMM at {record['result']['gemm_tflops'] / sum(known):.1%} of the datasheet's {sum(known):g} TFLOP/s"


def _table(record: dict[str, Any]) -> list[str]:
    result, samples = record["result"], record["samples"]
    flop = record["work"]["flop"]
    interval = result["time_ci_s"]
    shown = (
        "95 % interval needs 6 samples" if interval is None else f"95 % {seconds(interval[0])} … {seconds(interval[1])}"
    )
    lines = [f"  {'':<10}{'median':>11}{'rate':>17}   {'':<40}".rstrip()]
    lines.append(f"  {'span':<10}{seconds(result['time_s']):>11}{rate(result['tflops']):>17}   {shown}")
    spread = f"p5 {seconds(result['p5_s'])}, p95 {seconds(result['p95_s'])}"
    lines.append(f"  {'best':<10}{seconds(result['best_s']):>11}{rate(flop / result['best_s'] / 1e12):>17}   {spread}")
    for name, value in result["phases_s"].items():
        lines.append(
            f"  {_PHASE_NAMES.get(name, name):<10}{seconds(value):>11}{_phase_rate(record, name, value):>17}   slowest rank"
        )
    times = result["rank_time_s"]
    if len(times) > 1:
        slowest = max(range(len(times)), key=lambda rank: times[rank])
        who = record["world"]["ranks"][slowest]
        lines.append(
            f"  {'ranks':<10}{seconds(sorted(times)[len(times) // 2]):>11}{'':>17}   "
            f"{seconds(min(times))} … {seconds(max(times))}, slowest: rank {slowest} on {who['host']}"
        )
        lines.append(
            f"  {'starts':<10}{seconds(result['start_skew_s']):>11}{'':>17}   {_start(samples)}; "
            f"a barrier costs {seconds(result['barrier_s'])}"
        )
    return lines


def _start(samples: dict[str, Any]) -> str:
    reason = f" ({samples['start_reason']})" if samples["start_reason"] else ""
    late = f", {samples['dropped_late']} late and dropped" if samples["dropped_late"] else ""
    return f"apart at the {samples['start']} start{reason}{late}"


def _phase_rate(record: dict[str, Any], name: str, value: float) -> str:
    if name == "gemm":
        return rate(record["result"]["gemm_tflops"])
    if name == "collect" and record["result"]["busbw"] is not None:
        return f"{record['result']['busbw']:.4g} GB/s bus"
    return ""


def _facts(record: dict[str, Any]) -> list[str]:
    result, verification = record["result"], record["verification"]
    lines = [
        f"{record['work']['flop']} FLOP, {size(record['work']['bytes'])} of A, B and C; {result['samples']} samples; "
        f"set-up {seconds(result['setup_s'])}, first call {seconds(result['first_s'])}",
        f"verified: error {verification['max_error']:.2g} of {verification['tolerance']:.2g} allowed in sampled entries, "
        f"{verification['product_error']:.2g} of {verification['product_tolerance']:.2g} in the whole product",
    ]
    if result["busbw"] is not None:
        lines.append("bus bandwidth: bytes of C ÷ collect time × the share that crosses a link (nccl-tests' busbw)")
    if record["config"]["split"] == "k" and record["config"]["collect"] == "none":
        lines.append("partial sums: split k without a reduction leaves each rank its own terms")
    if record["samples"]["clock_error_s"] > 0:
        lines.append(f"hosts' clocks are known to ± {seconds(record['samples']['clock_error_s'])}")
    return lines


def _why_not(record: dict[str, Any]) -> str:
    result = record["result"]
    target = record["config"]["measure"]["target_rel_ci"]
    return f"stopped by measure.{result['stopped_by']} before the interval was within ± {target:.2g} of the median"

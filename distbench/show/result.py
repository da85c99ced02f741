"""One cell's record as a table: what it was, how fast, what bounds it, whether it is right."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from distbench.show.anatomy import anatomy_lines
from distbench.show.ceilings import ceiling_lines, ceilings_lines, kept_lines
from distbench.show.health import health_lines
from distbench.show.peaks import peak_of, share_of_peak
from distbench.show.units import rate, seconds, size
from distbench.stats import median

_PHASE_NAMES = {"h2d": "upload", "gemm": "GEMM", "collect": "collect"}


def result_lines(record: dict[str, Any]) -> list[Text]:
    """The lines to print for one record; each fits 80 columns unless a name is long."""
    if record["status"] != "ok":
        return [Text(f"{record['status']}: {record['reason']}", style="bold red"), *health_lines(record)]
    lines = [Text(""), *(Text(line, style="bold") for line in _title(record))]
    lines.append(Text(_headline(record), style="bold green"))
    lines += [Text(line) for line in _table(record)]
    lines += [Text(f"  {line}") for line in _facts(record)]
    lines += [Text(f"  {line}", style="yellow") for line in _doubts(record)]
    lines += [Text(line) for line in anatomy_lines(record)]
    lines += [Text(line) for line in (*ceilings_lines(record), *kept_lines(record))]
    lines += health_lines(record)
    return lines


def _title(record: dict[str, Any]) -> list[str]:
    config, world = record["config"], record["world"]["size"]
    w = config["workload"]
    batch = f"{w['batch']} x " if w["batch"] > 1 else ""
    upload = f", upload {w['upload']}" if w["upload"] != "none" else ""
    return [
        f"{w['name']}: {batch}[{w['m']} x {w['k']}] · [{w['k']} x {w['n']}], {w['dtype']} {w['fill']}, {config['engine']}",
        f"split {config['split']} over {world} rank{'s' * (world > 1)}{upload}, "
        f"collect {config['collect']}, path {config['path']}",
    ]


def _headline(record: dict[str, Any]) -> str:
    result = record["result"]
    return f"GEMM alone {rate(result['gemm_tflops'])}, total {rate(result['tflops'])}: {_bound(record)}"


def _bound(record: dict[str, Any]) -> str:
    """What takes the most of the span, in words."""
    result = record["result"]
    times = {_PHASE_NAMES.get(name, name): value for name, value in result["phases_s"].items()}
    times["uneven start"] = result["start_skew_s"]
    name = max(times, key=lambda key: times[key])
    return f"bound by the {name} ({min(1.0, times[name] / result['time_s']):.0%})"


def _table(record: dict[str, Any]) -> list[str]:
    result = record["result"]
    flop = record["work"]["flop"]
    interval = result["time_ci_s"]
    between = "95 % needs 6 samples" if interval is None else f"95 % {seconds(interval[0])} … {seconds(interval[1])}"
    lines = [
        _line("", "median", "rate", ""),
        _line("span", seconds(result["time_s"]), rate(result["tflops"]), between),
        _line(
            "best",
            seconds(result["best_s"]),
            rate(flop / result["best_s"] / 1e12),
            f"p5 {seconds(result['p5_s'])}, p95 {seconds(result['p95_s'])}",
        ),
    ]
    for name, value in result["phases_s"].items():
        lines.append(
            _line(_PHASE_NAMES.get(name, name), seconds(value), _phase_rate(record, name), "of the slowest rank")
        )
    times = result["rank_time_s"]
    if len(times) > 1:
        slowest = max(range(len(times)), key=lambda rank: times[rank])
        host = record["world"]["ranks"][slowest]["host"]
        spread = f"{seconds(min(times))} … {seconds(max(times))}, slowest rank {slowest} ({host})"
        lines.append(_line("ranks", seconds(median(times)), "", spread))
        lines.append(_line("starts", seconds(result["start_skew_s"]), "", f"apart, {_start(record['samples'])}"))
        lines.append(_line("barrier", seconds(result["barrier_s"]), "", "what a barrier costs here"))
    return lines


def _line(name: str, value: str, rate_text: str, note: str) -> str:
    return f"  {name:<8}{value:>10}{rate_text:>17}  {note}".rstrip()


def _start(samples: dict[str, Any]) -> str:
    late = f", {samples['dropped_late']} late dropped" if samples["dropped_late"] else ""
    return f"{samples['start']} start{late}"


def _phase_rate(record: dict[str, Any], name: str) -> str:
    if name == "gemm":
        return rate(record["result"]["gemm_tflops"])
    if name == "collect" and record["result"]["busbw"] is not None:
        return f"{record['result']['busbw']:.4g} GB/s bus"
    return ""


def _facts(record: dict[str, Any]) -> list[str]:
    result, verification = record["result"], record["verification"]
    lines = [
        f"{record['work']['flop']} FLOP, {size(record['work']['bytes'])} of A, B and C, {result['samples']} samples",
        f"set-up {seconds(result['setup_s'])}, first run {seconds(result['first_s'])}",
        f"verified: error {verification['max_error']:.1e} of {verification['tolerance']:.1e} allowed, "
        f"whole {verification['product_error']:.1e} of {verification['product_tolerance']:.1e}",
    ]
    share, peak = share_of_peak(record), peak_of(record)
    if share is not None:
        lines.insert(0, f"the GEMM reaches {share:.1%} of the datasheet's dense {peak:g} TFLOP/s")
    lines[:0] = ceiling_lines(record)
    if result["busbw"] is not None:
        lines.append("bus: bytes of C ÷ collect time × share that crosses a link (nccl-tests' busbw)")
    if record["config"]["split"] == "k" and record["config"]["collect"] == "none":
        lines.append("partial sums: split k without a reduction leaves each rank its own terms")
    if record["samples"]["start_reason"]:
        lines.append(f"starts are by the {record['samples']['start']}: {record['samples']['start_reason']}")
    if result.get("energy_per_sample_j"):
        watts = f"{result['tflops_per_watt'] * 1e3:.4g} GFLOP/s per watt"
        lines.append(f"{result['energy_per_sample_j']:.4g} J a sample, {watts}")
    lines += _mode(record["samples"].get("mode"))
    lines += _trace(record.get("trace"))
    if record["samples"]["clock_error_s"] > 0:
        lines.append(f"the hosts' clocks are known to ± {seconds(record['samples']['clock_error_s'])}")
    return lines


def _mode(mode: dict[str, Any] | None) -> list[str]:
    """In what state it was measured, where that is not the usual."""
    if mode is None:
        return []
    words = [mode["mode"]] if mode["mode"] != "default" else []
    if mode["rest_s"]:
        words.append(f"rested for {seconds(mode['rest_s'])} before the samples")
    if mode["settle"]:
        told = mode["settle"]
        words.append(f"{'settled' if told['settled'] else 'NOT settled'} after {seconds(told['seconds'])}")
    if mode["cache"] == "cold":
        words.append(f"cold caches: {size(mode['flush_bytes'])} written before each sample")
    if mode["graph"]:
        words.append("as a CUDA graph")
    if mode["inner"] > 1:
        words.append(f"{mode['inner']} products per sample, times are of one")
    return [f"mode: {'; '.join(words)}"] if words else []


def _trace(trace: dict[str, Any] | None) -> list[str]:
    if trace is None:
        return []
    what = "kernel" if trace["of"] == "kernels" else "product"
    lines = [f"trace of {trace['samples']} more samples: {trace['files'][0]}, and one file a rank"]
    lines += [f"trace elsewhere: {place}" for place in trace["elsewhere"]]
    if trace["gap_s"] is not None:
        lines.append(f"no {what} ran for {seconds(trace['gap_s'])} ({trace['gap_share']:.1%}) between first and last")
    if trace["overlap_share"] is not None:
        lines.append(f"copies overlapped {what}s for {trace['overlap_share']:.1%} of their time")
    if trace["kernels_per_stream"]:
        count = sum(trace["kernels_per_stream"].values())
        lines.append(f"{count} kernels on {len(trace['kernels_per_stream'])} streams")
    if trace["launch_delay_s"]:
        delay = trace["launch_delay_s"]
        lines.append(f"launch to kernel {seconds(delay['median'])} median, {seconds(delay['max'])} at most")
    return lines


def _doubts(record: dict[str, Any]) -> list[str]:
    """One line per warning."""
    result, lines = record["result"], []
    if not result["converged"]:
        target = record["config"]["measure"]["target_rel_ci"]
        stop = result["stopped_by"]
        lines = [f"not converged: measure.{stop} came before ± {target:.2g} of the median was reached"]
    warnings = [warning for warning in record.get("warnings", []) if warning["name"] != "unconverged"]
    return lines + [_doubt(warning) for warning in warnings]


def _doubt(warning: dict[str, Any]) -> str:
    limit = f" (limit {warning['threshold']:.3g})" if warning["threshold"] else ""
    return f"{warning['name']}: {warning['text']}{limit}"

"""Anatomy of a query, from its record alone: what each phase took and moved, and the limit that it runs into.

Limits are rates of all ranks at once, as measure.limits=true measured them beside the query; the arithmetic one may be the
machine's kept ceiling instead. No limit is known where nobody measured one.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from distbench.config import CollectName, DType, Layout
from distbench.dtypes import FACTS
from distbench.layout import whole
from distbench.operands import stored_shapes
from distbench.summary import busbw

Record = dict[str, Any]


class Limit(NamedTuple):
    """name: of the measured row; gives: what gives this rate, in words."""

    name: str
    rate: float
    gives: str


def anatomy(record: Record) -> dict[str, Any]:
    """The record's `anatomy`. record: of a cell that went well.

    phases: set-up and fill, then those of a sample. device_s by events, host_s by the host's clock (on a GPU measured apart,
    with a wait after each phase). bytes: over a link those moved, within a memory those read and written. rate: GB/s
    or TFLOP/s, over the phase, or over the span where phases overlap. limit_share: rate ÷ limit. share: the phase's time ÷
    the span; where phases overlap, the time that its work takes at its limit ÷ the span.
    """
    result = record["result"]
    overlap = bool(record["samples"]["phases_overlap"])
    phases = [_before("set-up", result["setup_s"]), _fill(record)]
    phases += [_phase(record, name, overlap) for name in result["phases_s"]]
    loop = result.get("loop")
    faults = None if loop is None else loop["page_faults_per_run"]
    kept = [{key: value for key, value in phase.items() if key != "gives"} for phase in phases]
    sentence = _sentence_overlap(record, phases) if overlap else _sentence(record, phases, faults)
    return {"phases": kept, "page_faults_per_run": faults, "sentence": sentence}


# --- phases ----------------------------------------------------------------------------------------------------------


def _before(name: str, host_s: float) -> dict[str, Any]:
    """What precedes the query: no share of its span."""
    nothing = dict.fromkeys(
        ("device_s", "bytes", "flop", "rate", "unit", "limit", "limit_name", "limit_share", "share")
    )
    return {"name": name, **nothing, "host_s": host_s, "gives": None}


def _fill(record: Record) -> dict[str, Any]:
    phase = _before("fill", record["result"]["fill_s"])
    count = sum(_operand_bytes(record))
    return phase | _rated(count, None, phase["host_s"], _row(record, "memory copy"))


def _phase(record: Record, name: str, overlap: bool) -> dict[str, Any]:
    result = record["result"]
    seconds, span_s = result["phases_s"][name], result["time_s"]
    on_gpu = record["config"]["device"] == "cuda"
    by_host = ((record.get("limits") or {}).get("phases_host_s") or {}).get(name)
    phase = {"name": name, "device_s": seconds if on_gpu else None, "host_s": by_host if on_gpu else seconds}
    if name == "gemm":
        told = _rated(None, record["work"]["flop"], span_s if overlap else seconds, _gemm_limit(record, overlap))
    else:
        count, limit = _upload(record) if name == "h2d" else _collect(record)
        told = _rated(count, None, span_s if overlap else seconds, limit)
    # With the rate over the span, rate ÷ limit is the time that the work takes at its limit ÷ the span.
    return phase | told | {"share": told["limit_share"] if overlap else min(1.0, seconds / span_s)}


def _rated(count: int | None, flop: int | None, seconds: float, limit: Limit | None) -> dict[str, Any]:
    work, unit, scale = (flop, "TFLOP/s", 1e12) if flop else (count, "GB/s", 1e9)
    rate = work / seconds / scale if work and seconds > 0 else None
    known = limit if rate is not None else None
    return {
        "bytes": count,
        "flop": flop,
        "rate": rate,
        "unit": None if rate is None else unit,
        "limit": known and known.rate,
        "limit_name": known and known.name,
        "limit_share": rate / known.rate if rate is not None and known else None,
        "gives": known and known.gives,
    }


def _parts(record: Record) -> list[dict[str, int]]:
    """Sizes of every shard."""
    return [part["shard"] for rank in record["world"]["ranks"] for part in rank["parts"]]


def _operand_bytes(record: Record) -> tuple[int, int]:
    """Of A and of B as stored, of all shards together."""
    w, layout = record["config"]["workload"], Layout(record["work"]["layout"])
    shapes = [stored_shapes(whole(**shard), layout, w["padding"]) for shard in _parts(record)]
    itemsize = FACTS[DType(w["dtype"])].itemsize
    return itemsize * sum(prod(a) for a, _ in shapes), itemsize * sum(prod(b) for _, b in shapes)


def _c_bytes(record: Record) -> int:
    """Of C, of all shards together."""
    itemsize = FACTS[DType(record["config"]["workload"]["dtype"])].c_itemsize
    return itemsize * sum(shard["batch"] * shard["m"] * shard["n"] for shard in _parts(record))


def _upload(record: Record) -> tuple[int, Limit | None]:
    a, b = _operand_bytes(record)
    count = b if record["config"]["workload"]["upload"] == "b" else a + b
    if record["config"]["device"] == "cuda":
        return count, _row(record, "host to device, pinned")  # their host copies are page-locked
    return 2 * count, _row(record, "memory copy")


def _collect(record: Record) -> tuple[int | None, Limit | None]:
    config = record["config"]
    on_gpu, path, collect = config["device"] == "cuda", config["path"], CollectName(config["collect"])
    count = _c_bytes(record)
    if path in ("pinned", "pipelined") or (path == "shared" and on_gpu):
        return count, _row(record, "device to host, pinned")
    if path in ("fresh", "pageable"):
        return (count, _row(record, "device to host, pageable")) if on_gpu else (2 * count, _row(record, "memory copy"))
    if path == "shared" or collect is CollectName.topk:
        return None, None  # a barrier; the ranks' few best
    if collect not in _OVER_THE_GROUP:
        return None, None
    w = record["config"]["workload"]
    c_bytes = FACTS[DType(w["dtype"])].c_itemsize * w["batch"] * w["m"] * w["n"]
    per_second = busbw(collect, c_bytes, record["world"]["size"], 1.0)  # GB/s if it took a second
    return (None, None) if per_second is None else (round(per_second * 1e9), _row(record, str(collect)))


_OVER_THE_GROUP = (
    CollectName.gather,
    CollectName.all_gather,
    CollectName.reduce,
    CollectName.reduce_scatter,
    CollectName.all_reduce,
)


# --- limits ----------------------------------------------------------------------------------------------------------


def _row(record: Record, name: str) -> Limit | None:
    rows = (record.get("limits") or {}).get("rows", [])
    row = next((row for row in rows if row["name"] == name and row["value"]), None)
    if row is None:
        return None
    gives = {"memory copy": "a copy in memory reaches here", "GEMM alone": "it reaches alone"}
    if row["busbw"] is not None:
        return Limit(name, row["busbw"], f"the {name} reaches alone")
    link = "this link gives with pageable memory" if name.endswith("pageable") else "this link gives"
    return Limit(name, row["value"], gives.get(name, link))


def _gemm_limit(record: Record, overlap: bool) -> Limit | None:
    """The kept ceiling of this machine, or of its memory where that is lower; else this GEMM with nothing beside it.

    The latter first where something is beside it: copies, or a search in what was computed.
    """
    alone, ceiling, kept = _row(record, "GEMM alone"), record.get("ceiling"), None
    if ceiling is not None and ceiling["gemm_tflops"] is not None:
        if ceiling["roof_tflops"] < ceiling["gemm_tflops"]:
            kept = Limit("memory roof", ceiling["roof_tflops"], "the memory's measured rate allows")
        else:
            kept = Limit("GEMM ceiling", ceiling["gemm_tflops"], "this machine's best GEMM reaches")
    beside = overlap or record["config"]["collect"] == "topk"
    return (alone or kept) if beside else (kept or alone)


# --- the sentence ----------------------------------------------------------------------------------------------------


def _words(record: Record, name: str) -> str:
    config = record["config"]
    on_gpu, collect = config["device"] == "cuda", config["collect"]
    if name == "h2d":
        what = "B" if config["workload"]["upload"] == "b" else "A and B"
        return f"the copy of {what}" + (" to the device" if on_gpu else "")
    if name == "gemm":
        return "the GEMM and the search of its scores" if collect == "topk" else "the GEMM"
    if collect == "topk":
        return "the merge of the ranks' best"
    if config["path"] == "shared" and not on_gpu:
        return "the barrier after the GEMM"
    return "the copy of C to the host" if collect == "host" else f"the {collect} of C"


def _sentence(record: Record, phases: list[dict[str, Any]], faults: float | None) -> str:
    """The phase that takes the most of the span, and how near it is to its limit."""
    result = record["result"]
    phase = max((phase for phase in phases if phase["share"] is not None), key=lambda phase: float(phase["share"]))
    uneven = result["start_skew_s"] / result["time_s"]
    if uneven > phase["share"]:
        return f"bound by the ranks' uneven start: {min(1.0, uneven):.0%} of the span"
    text = f"bound by {_words(record, phase['name'])}: {phase['share']:.0%} of the span"
    if phase["rate"] is not None:
        text += f", at {_at(phase)}"
    if phase["name"] == "collect" and record["config"]["path"] == "fresh" and faults:
        text += f"; its new array costs {faults:.0f} page faults a run"
    return text


def _sentence_overlap(record: Record, phases: list[dict[str, Any]]) -> str:
    """The work that takes longest at its limit: no query is shorter, however well its phases overlap."""
    known = [phase for phase in phases if phase["share"] is not None]
    if not known:
        return "the phases overlap, so that their times do not tell what bounds the query: measure.limits=true does"
    first, *others = sorted(known, key=lambda phase: -float(phase["share"]))
    rate, unit = _scaled(first, first["limit"])
    bound = (
        f"bound by {_words(record, first['name'])}, which"
        if first["share"] >= 0.5
        else (f"bound by none of the measured limits: {_words(record, first['name'])}")
    )  # a new array's pages, say, cost more than what is copied into them
    text = (
        f"the phases overlap; {bound} at the {_digits(rate)} {unit} that "
        f"{first['gives']} takes {first['share']:.0%} of the span"
    )
    told = [phase for phase in others if phase["share"] >= 0.005]
    return text + "".join(f"; {_words(record, phase['name'])} would take {phase['share']:.0%}" for phase in told)


def _at(phase: dict[str, Any]) -> str:
    """54.6 of the 55.1 GB/s that this link gives (99 %)."""
    if phase["limit"] is None:
        rate, unit = _scaled(phase, phase["rate"])
        return f"{_digits(rate)} {unit}"
    limit, unit = _scaled(phase, phase["limit"])
    rate = phase["rate"] * limit / phase["limit"]
    cached = ", so in caches" if phase["limit_name"] == "memory copy" and phase["limit_share"] > 1.05 else ""
    return f"{_digits(rate)} of the {_digits(limit)} {unit} that {phase['gives']} ({phase['limit_share']:.0%}{cached})"


def _scaled(phase: dict[str, Any], value: float) -> tuple[float, str]:
    return (1e3 * value, "GFLOP/s") if phase["unit"] == "TFLOP/s" and value < 1 else (value, str(phase["unit"]))


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"  # never 1.2e+03

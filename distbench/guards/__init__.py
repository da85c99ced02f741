"""Whether to believe a result: named warnings on a record, each with its value and its threshold.

A guard is one function of a `Case`; it returns warnings, none where all is well, and raises `Unknown` where it cannot
tell: what was not checked is written down too, for an unknown is not healthy. An `impossible` warning makes the result
`wrong`: no machine does that, so it is the timing that is at fault.
"""

from __future__ import annotations

from typing import Any

from distbench.config import DType, Guard
from distbench.dtypes import FACTS
from distbench.guards import impossible, machine, ranks, samples
from distbench.guards.case import Case, Check, Unknown, Warned

GUARDS: dict[str, Check] = {
    "above_peak": impossible.above_peak,
    "copy_above_link": impossible.copy_above_link,
    "span_below_device_time": impossible.span_below_device_time,
    "device_idle": samples.device_idle,
    "drift": samples.drift,
    "bimodal": samples.bimodal,
    "unconverged": samples.unconverged,
    "unequal_threads": ranks.unequal_threads,
    "unequal_devices": ranks.unequal_devices,
    "unequal_clocks": ranks.unequal_clocks,
    "busy": machine.busy,
    "stolen": machine.stolen,
    "throttled": machine.throttled,
    "ecc_errors": machine.ecc_errors,
    "shared_gpu": machine.shared_gpu,
    "state_unknown": machine.state_unknown,
}


def judged(record: dict[str, Any], peak_tflops: float | None, limits: Guard) -> dict[str, Any]:
    """The record of a cell that went well, with its `warnings` and what was `unchecked`; the impossible warnings first.

    Where a warning says that the result is impossible: status wrong, and no result.
    """
    case = Case(
        **{name: record[name] for name in ("config", "samples", "result", "telemetry")},
        ranks=record["world"]["ranks"],
        peak_tflops=peak_tflops,
        limits=limits,
        itemsize=FACTS[DType(record["config"]["workload"]["dtype"])].itemsize,
    )
    warned: list[Warned] = []
    unchecked = []
    for name, guard in GUARDS.items():
        try:
            warned += guard(case)
        except Unknown as unknown:
            unchecked.append({"name": name, "reason": str(unknown)})
    warned.sort(key=lambda warning: not warning.impossible)
    told = record | {"warnings": [vars(warning) for warning in warned], "unchecked": unchecked}
    if texts := [warning.text for warning in warned if warning.impossible]:
        told |= {"status": "wrong", "reason": f"impossible: {'; '.join(texts)}", "result": None}
    return told

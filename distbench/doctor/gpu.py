"""GPUs: their state, what else runs on them, and where they sit. Only where the driver shows one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from distbench.doctor.cpu import numa_nodes
from distbench.doctor.machine import Finding, Level, Machine, ok
from distbench.telemetry.nvml import INSTALL, REASONS, Missing, Nvml, load

_HOT = {"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"}
_MOST_LINKS = 18
_FAR = {30: "one host bridge", 40: "one processor", 50: "the link between processors"}
"""nvmlGpuTopologyLevel: the nearest thing that two cards share."""


def devices(machine: Machine, nvml: Callable[[], Any] = load) -> list[Finding]:
    """State of every card: throttling, ECC, other processes, narrow links, distance to this rank's cores."""
    if not machine.has_gpu:
        return ok("no GPU: the driver shows none")
    try:
        cards = _cards(nvml())
    except Missing as missing:
        remedy = INSTALL if "not installed" in str(missing) else "nvidia-smi says more"
        return [Finding(Level.slow, f"the GPUs' state cannot be seen: {missing}", remedy)]
    found = [finding for index, card in enumerate(cards) for finding in _state(machine, index, card)]
    found += _place(machine, cards)
    found += _peers(cards)
    return found or ok(f"{len(cards)} GPU{'s' * (len(cards) != 1)}: cool, alone, in order")


def versions(machine: Machine, nvml: Callable[[], Any] = load) -> list[Finding]:
    """Driver, CUDA, torch and the card's architecture fit together."""
    if not machine.has_gpu:
        return ok("no GPU: nothing to fit together")
    import torch

    if torch.version.cuda is None:
        text = f"torch {torch.__version__} is built without CUDA, and there is a GPU"
        return [Finding(Level.slow, text, "install torch from the index of the CUDA version that the driver supports")]
    found = []
    try:
        supported = nvml().nvmlSystemGetCudaDriverVersion_v2()
    except (Missing, AttributeError):
        supported = None
    wanted = int(torch.version.cuda.split(".")[0])
    if supported is not None and supported // 1000 < wanted:
        text = f"the driver supports CUDA {supported // 1000}.{supported % 1000 // 10}, torch is built for {torch.version.cuda}"
        found.append(Finding(Level.wrong, text, "a newer driver, or torch for an older CUDA"))
    if not torch.cuda.is_available():
        visible = machine.environment.get("CUDA_VISIBLE_DEVICES")
        why = f" (CUDA_VISIBLE_DEVICES={visible!r})" if visible is not None else ""
        return [
            *found,
            Finding(Level.slow, f"the driver shows a GPU that torch cannot use{why}", "nvidia-smi says more"),
        ]
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        built = {name.removeprefix("sm_").rstrip("af") for name in torch.cuda.get_arch_list() if name.startswith("sm_")}
        if built and not any(int(name[:-1]) == major and int(name[-1]) <= minor for name in built):
            text = f"torch has no kernels for cuda:{index} (compute capability {major}.{minor})"
            found.append(Finding(Level.wrong, text, "torch built for a CUDA that knows this card"))
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return found or ok(f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}")


def _cards(library: Any) -> list[Nvml]:
    cards = []
    for index in range(library.nvmlDeviceGetCount()):
        uuid = library.nvmlDeviceGetUUID(library.nvmlDeviceGetHandleByIndex(index))
        cards.append(Nvml(library, uuid.decode() if isinstance(uuid, bytes) else uuid))
    return cards


def _state(machine: Machine, index: int, card: Nvml) -> Iterator[Finding]:
    moment, counters = card.moment(), card.counters()
    bits = int(moment["reasons"] or 0)
    held = [name for bit, name in REASONS.items() if bits & bit]
    hot = [name.replace("_", " ") for name in held if name in _HOT]
    if moment["reasons"] is None or not moment["sm_clock_mhz"]:
        yield Finding(Level.note, f"GPU {index} does not tell its clock", "nvidia-smi -q -d CLOCK")
    if hot:
        text = f"GPU {index} is held down by {', '.join(hot)} at {moment['temperature_c']} °C"
        yield Finding(Level.wrong, text, "cooling or power supply; nvidia-smi -q -d PERFORMANCE")
    if "user_clocks" in held:
        yield Finding(Level.slow, f"GPU {index} has its clocks set by hand", "nvidia-smi -rgc (and -rac)")
    if counters["ecc_uncorrected"]:
        text = f"GPU {index} counted {counters['ecc_uncorrected']} uncorrected ECC errors since the driver started"
        yield Finding(Level.wrong, text, "take it out of use; nvidia-smi -q -d ECC,ROW_REMAPPER")
    elif counters["ecc_corrected"]:
        text = f"GPU {index} corrected {counters['ecc_corrected']} ECC errors since the driver started"
        yield Finding(Level.note, text, "watch whether it grows")
    others = set(card.processes() or {}) - {os.getpid()}
    if others and machine.launch.world_size == 1:
        pids = ", ".join(map(str, sorted(others)[:4]))
        yield Finding(
            Level.wrong, f"GPU {index} is used by other processes (pid {pids})", "end them, or CUDA_VISIBLE_DEVICES"
        )
    width, most = (card.of_card(f"nvmlDeviceGet{which}PcieLinkWidth") for which in ("Curr", "Max"))
    if width and most and width < most:
        yield Finding(Level.slow, f"GPU {index}'s PCIe link has {width} of {most} lanes", "reseat it, or another slot")


def _place(machine: Machine, cards: list[Nvml]) -> Iterator[Finding]:
    """This rank's cores and its GPU (the one that distbench gives it: local rank modulo their number)."""
    if not cards or machine.environment.get("CUDA_VISIBLE_DEVICES"):
        return
    index = machine.launch.local_rank % len(cards)
    pci = cards[index].of_card("nvmlDeviceGetPciInfo_v3")
    if pci is None:
        return
    bus = pci.busId.decode() if isinstance(pci.busId, bytes) else pci.busId
    node = machine.read(f"sys/bus/pci/devices/{bus.lower()[-12:]}/numa_node")
    nodes = numa_nodes(machine, machine.mask)
    if node is not None and node.isdecimal() and nodes and int(node) not in nodes:
        text = f"GPU {index} is on memory node {node}, this rank's cores on {', '.join(map(str, sorted(nodes)))}"
        yield Finding(Level.slow, text, "bind by node: numactl, mpirun --map-by numa, srun --gpu-bind=closest")


def _peers(cards: list[Nvml]) -> Iterator[Finding]:
    """How the cards reach each other."""
    links = [sum(1 for link in range(_MOST_LINKS) if card.of_card("nvmlDeviceGetNvLinkState", link)) for card in cards]
    for index, count in enumerate(links):
        if count < max(links):
            text = f"GPU {index} has {count} NVLinks up, another {max(links)}"
            yield Finding(Level.wrong, text, "nvidia-smi nvlink -s; restart the fabric manager")
    if len(cards) < 2 or any(links):
        return
    pairs = [(a, b) for a in range(len(cards)) for b in range(a)]
    levels = [cards[a].of_card("nvmlDeviceGetTopologyCommonAncestor", cards[b].card) for a, b in pairs]
    worst = max((level for level in levels if level is not None), default=None)
    if worst in _FAR:
        text = f"no NVLink: the farthest two GPUs reach each other through {_FAR[worst]}"
        yield Finding(Level.slow, text, "ranks on GPUs under one PCIe switch (nvidia-smi topo -m)")

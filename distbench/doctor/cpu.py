"""Threads, cores and clocks."""

from __future__ import annotations

import time

import psutil

from distbench import cores
from distbench.doctor.machine import Finding, Level, Machine, ok
from distbench.telemetry.cpu import Cpu, difference

_WATCH_S = 0.6
_BUSY, _STEAL = 0.05, 0.02


def threads(machine: Machine) -> list[Finding]:
    """How many threads a rank gets, and who said so."""
    launch, text = machine.launch, machine.environment.get("OMP_NUM_THREADS")
    share = cores.share_of(machine.mask, machine.local_masks, cores.cgroup_quota())
    users = cores.users_omp_threads(launch.launcher)
    if users is None:
        by = f"; OMP_NUM_THREADS={text} is {launch.launcher}'s own and not heeded" if text else ""
        return ok(f"{share} a rank: its share of {len(machine.mask)} cores{by}")
    told = f"OMP_NUM_THREADS={text} ({setter(machine, 'OMP_NUM_THREADS')})"
    if users < share:
        remedy = f"unset OMP_NUM_THREADS, or threads={share}"
        return [Finding(Level.slow, f"{told} holds a rank to {users} of its {share} cores", remedy)]
    if users > share:
        remedy = f"unset OMP_NUM_THREADS, or threads={share}"
        return [Finding(Level.slow, f"{told}: {users} threads a rank, {share} cores a rank", remedy)]
    return ok(f"{users} a rank, by {told}")


def setter(machine: Machine, name: str, pid: int | None = None) -> str:
    """Who put a variable into the environment: the outermost ancestor that was started with it."""
    found = "set by this process's parent"
    process = psutil.Process(pid)
    for ancestor in [process, *process.parents()]:
        raw = machine.root / f"proc/{ancestor.pid}/environ"
        try:
            has = any(item.startswith(f"{name}=".encode()) for item in raw.read_bytes().split(b"\0"))
        except OSError:
            break
        if not has:
            return f"set by {ancestor.name()}, pid {ancestor.pid}"
        found = f"{ancestor.name()}, pid {ancestor.pid}, was started with it"
    return found


def affinity(machine: Machine) -> list[Finding]:
    """Whether the ranks of this host may use all of its cores, each its own."""
    union = {core for mask in machine.local_masks for core in mask}
    online = _cores_of(machine.read("sys/devices/system/cpu/online") or "") or union
    ranks = len(machine.local_masks)
    found = []
    if len(union) < len(online):
        remedy = {
            "openmpi": "mpirun --bind-to none (or --map-by numa)",
            "mpich": "mpirun -bind-to none",
            "slurm": "srun --cpus-per-task, or --cpu-bind=none",
        }.get(machine.launch.launcher, "taskset, the cpuset of the container or of the job")
        text = f"{ranks} rank{'s' * (ranks > 1)} may use {len(union)} of {len(online)} cores"
        found.append(Finding(Level.slow, text, remedy))
    if ranks > len(union):
        text = f"{ranks} ranks on {len(union)} core{'s' * (len(union) > 1)}: they take turns, starts are uneven"
        found.append(Finding(Level.wrong, text, f"at most {len(union)} ranks on this host"))
    siblings = _sibling_threads(machine)
    if siblings > 0 and cores.share_of(machine.mask, machine.local_masks, None) > len(machine.mask) - siblings:
        whole = len(machine.mask) - siblings
        text = (
            f"{len(machine.mask)} hardware threads of {whole} cores: a second thread of a core adds nothing to a GEMM"
        )
        found.append(Finding(Level.slow, text, f"threads={max(1, whole // ranks)}"))
    return found or ok(f"{len(union)} of {len(online)} cores for {ranks} rank{'s' * (ranks > 1)}")


def quota(machine: Machine) -> list[Finding]:
    """A limit on CPU time below the cores that one sees."""
    limit = cores.cgroup_quota()
    union = len({core for mask in machine.local_masks for core in mask})
    if limit is None or limit >= union:
        return ok("no CPU quota below the cores")
    text = f"the cgroup allows {limit:g} cores' worth of time on {union} cores: the kernel stops the ranks in bursts"
    return [
        Finding(
            Level.wrong, text, f"raise the limit (docker --cpus, the pod's limits), or threads={max(1, int(limit))}"
        )
    ]


def busy(machine: Machine) -> list[Finding]:
    """Other work on this host's ranks' cores while all of the ranks wait."""
    union = sorted({core for mask in machine.local_masks for core in mask})
    state, before = Cpu(union, machine.root), _cpu_times()
    first = state.counters()
    time.sleep(_WATCH_S)
    told = difference(first, state.counters())
    if told["busy_cores"] is None:
        return [Finding(Level.note, f"cannot tell whether the cores are busy: {told['reasons']['busy_cores']}")]
    used = _used(before)
    own = sum(used.get(pid, ("", 0.0))[1] for pid in machine.local_pids) / told["elapsed_s"]
    others = max(0.0, told["busy_cores"] - own) / len(union)
    found = []
    if others > _BUSY:
        text = f"other work takes {others:.0%} of {len(union)} cores{_names(used, machine.local_pids)}"
        found.append(Finding(Level.wrong, text, "wait for it, end it, or ask for a machine of your own"))
    if told["steal_share"] > _STEAL and told["busy_cores"] > _BUSY:
        text = f"the hypervisor takes {told['steal_share']:.0%} of the cores' time for other machines"
        found.append(Finding(Level.wrong, text, "a dedicated instance"))
    return found or ok(f"others take {others:.0%} of the cores")


def governor(machine: Machine) -> list[Finding]:
    """What sets the clock."""
    folder = "sys/devices/system/cpu"
    policies = {core: machine.read(f"{folder}/cpu{core}/cpufreq/scaling_governor") for core in machine.mask}
    known = {name for name in policies.values() if name}
    found = []
    if not known:
        found.append(Finding(Level.ok, "the kernel shows no clock control (a virtual machine, or no driver)"))
    driver = machine.read(f"{folder}/cpu{machine.mask[0]}/cpufreq/scaling_driver") or ""
    held = known - {"performance"} - ({"powersave"} if "pstate" in driver else set())  # pstate's powersave scales up
    if held:
        text = f"the clock's governor is {', '.join(sorted(held))}: short runs start at a low clock"
        found.append(Finding(Level.wrong, text, "cpupower frequency-set -g performance"))
    turbo_off = machine.read(f"{folder}/intel_pstate/no_turbo") == "1" or machine.read(f"{folder}/cpufreq/boost") == "0"
    if turbo_off:
        remedy = "intended for steady numbers? If not: echo 1 > /sys/devices/system/cpu/cpufreq/boost"
        found.append(Finding(Level.slow, "boost is switched off", remedy))
    return found or ok(f"governor {', '.join(sorted(known))}")


def numa(machine: Machine) -> list[Finding]:
    """Whether a rank's cores lie on one memory node."""
    nodes = numa_nodes(machine, machine.mask)
    if len(nodes) <= 1:
        return ok("this rank's cores lie on one memory node")
    text = f"this rank's cores lie on memory nodes {', '.join(map(str, sorted(nodes)))}: half of its memory is far away"
    return [Finding(Level.slow, text, f"{len(nodes)} ranks a host, bound by node (numactl, --map-by numa)")]


def numa_nodes(machine: Machine, mask: list[int]) -> set[int]:
    """The memory nodes of some cores."""
    return {
        int(path.name[4:])
        for path in machine.glob("sys/devices/system/node/node[0-9]*")
        if _cores_of(cores.read(path / "cpulist") or "") & set(mask)
    }


def _cores_of(text: str) -> set[int]:
    """'0-3,8' as a set."""
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdecimal():
            found |= set(range(int(low), int(high or low) + 1))
    return found


def _sibling_threads(machine: Machine) -> int:
    """Hardware threads of the mask beyond one for each core."""
    groups = {
        frozenset(
            _cores_of(machine.read(f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") or str(core))
        )
        for core in machine.mask
    }
    return len(machine.mask) - len(groups)


def _cpu_times() -> dict[int, tuple[str, float]]:
    """CPU seconds so far of every process that can be seen."""
    told = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None:
            told[process.pid] = (process.info["name"] or "?", times.user + times.system)
    return told


def _used(before: dict[int, tuple[str, float]]) -> dict[int, tuple[str, float]]:
    """pid → (name, CPU seconds since `before`)."""
    return {pid: (name, now - before.get(pid, ("", 0.0))[1]) for pid, (name, now) in _cpu_times().items()}


def _names(used: dict[int, tuple[str, float]], own: set[int]) -> str:
    """The processes that computed the most, by name."""
    top = sorted((pid for pid in used if pid not in own and used[pid][1] > 0.02), key=lambda pid: -used[pid][1])[:3]
    return f" ({', '.join(f'{used[pid][0]} pid {pid}' for pid in top)})" if top else ""

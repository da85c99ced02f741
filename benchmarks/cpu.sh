#!/usr/bin/env bash
# The records behind docs/results/cpu.md: what the CPU can do, the notebook's batch, the small gallery by each path, health of
# two ranks, and the fastest shapes. Some four minutes on two cores. Run it from the project's folder:
#     benchmarks/cpu.sh docs/results/cpu
#     distbench report --format md --title "Two cores" docs/results/cpu/*.jsonl > docs/results/cpu.md
. "$(dirname "$0")/_records.sh"

keep 0-ceilings $one workload=ceilings device=cpu
keep 1-ceilings-2-ranks $two workload=ceilings device=cpu
keep 2-cpu-vs-gpu $one -m +experiment=cpu_vs_gpu
keep 3-gallery-small $two -m workload=gallery_small device=cpu collect=gather path=collective,p2p,shared
keep 4-health $two +experiment=health device=cpu
keep 5-peak $one +experiment=peak device=cpu peak.time_s=30

#!/usr/bin/env bash
# The records behind docs/results/h200.md: the gallery at full size and square 8192 in each dtype, one rank over nccl and
# three ranks that share the GPU over gloo. Run it on a machine with a GPU, from the project's folder:
#     benchmarks/h200.sh docs/results/h200 && distbench report --format md docs/results/h200/*.jsonl > docs/results/h200.md
set -euo pipefail
out=${1:?folder for the records}
mkdir -p "$out"
export LOGLEVEL=ERROR
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

keep() { # NAME COMMAND…: run it in a folder of its own and keep its records
  local name=$1
  shift
  "$@" hydra.run.dir="$work/$name" hydra.sweep.dir="$work/$name"
  mv "$work/$name/results.jsonl" "$out/$name.jsonl"
}

dtypes=float64,float32,bfloat16,float16
one="python3 -m distbench"
three="torchrun --nproc_per_node=3 -m distbench"
keep gallery-1-rank $one workload=gallery
keep square-1-rank $one -m workload=square workload.n=8192 workload.dtype=$dtypes measure=thorough measure.max_time_s=10
keep gallery-3-ranks $three workload=gallery
keep gallery-3-ranks-shared $three workload=gallery path=shared
keep square-3-ranks $three -m workload=square workload.n=8192 workload.dtype=$dtypes measure=thorough measure.max_time_s=10

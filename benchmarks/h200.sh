#!/usr/bin/env bash
# The records behind docs/results/h200.md: what the card can do, the two experiments at full size, streams, square products
# in each dtype, its health and its fastest shapes, on one device and with three shards or ranks that share it; then each
# dtype's rate beside a bare loop. Some ten minutes on a machine with a GPU, from the project's folder:
#     benchmarks/h200.sh docs/results/h200 [NAME…]        (NAME: only these records, 9-peak say, or rates)
#     distbench report --format md --title "One NVIDIA H200" docs/results/h200/*.jsonl > docs/results/h200.md
. "$(dirname "$0")/_records.sh"

dtypes=float64,float32,tf32,bfloat16,float16,float8_e4m3fn,float8_e5m2,int8,complex64,complex128
keep 0-ceilings $one workload=ceilings
keep 1-gallery-methods-1-device $one -m +experiment=gallery_methods
keep 2-gallery-methods-3-ranks $three -m +experiment=gallery_methods
keep 3-topk $one -m workload=gallery workload.upload=none workload.dtype=float64,bfloat16 collect=none,topk
keep 4-cpu-vs-gpu $one -m +experiment=cpu_vs_gpu
keep 5-streams $one -m +experiment=streams
keep 6-stream-kinds $one -m +experiment=stream_kinds
keep 7-square $one -m workload=square workload.n=8192 workload.dtype=$dtypes measure=thorough measure.max_time_s=4 measure.inner=auto
keep 8-health $one +experiment=health
keep 8-health-3-ranks $three +experiment=health
keep 9-peak $one +experiment=peak workload.dtype=float64,bfloat16,int8 peak.time_s=15
if wanted rates; then
  {
    python3 benchmarks/dtype_rates.py --pairs 10 --turns 10 --dtypes $dtypes || true
    python3 benchmarks/dtype_rates.py --pairs 10 --turns 200 --batched --dtypes float64,float32 || true
    python3 benchmarks/telemetry_cost.py --pairs 30 || true
  } 2>&1 | tee "$out/rates.txt"
fi

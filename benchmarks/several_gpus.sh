#!/usr/bin/env bash
# The records for docs/results/h200-multi.md (not measured yet): the gallery by every method on three GPUs, strong and weak scaling over 1, 2, …
# GPUs, every collective over sizes, and the health of all GPUs, once in peace and once with one of them loaded on purpose.
# Some eight minutes on four GPUs; a GPU for each of GPUS ranks. From the project's folder:
#     GPUS=4 benchmarks/several_gpus.sh docs/results/h200-multi
#     distbench report --format md --title "Several H200" docs/results/h200-multi/*.jsonl > docs/results/h200-multi.md
# To try the script where there is no GPU:
#     GPUS=2 SQUARE=512 GALLERY=30000 benchmarks/several_gpus.sh /tmp/records
. "$(dirname "$0")/_records.sh"

gpus=${GPUS:?how many GPUs} square=${SQUARE:-16384} gallery=${GALLERY:-3000000}
worlds=$(for n in 1 2 3 4 8; do if [ "$n" -le "$gpus" ]; then echo "$n"; fi; done)
ranks() { echo "torchrun --nproc_per_node=$1 -m distbench"; }
last=$((gpus - 1))

keep 0-ceilings $(ranks "$gpus") workload=ceilings
keep 1-gallery-methods $(ranks $((gpus < 3 ? gpus : 3))) -m +experiment=gallery_methods workload.m="$gallery"
for n in $worlds; do
  run=$(ranks "$n")
  keep "2-gallery-$n" $run -m workload=gallery workload.m="$gallery" collect=none,host path=auto measure=quick
  keep "2-gallery-shared-$n" $run workload=gallery workload.m="$gallery" collect=host path=shared measure=quick
  keep "2-gallery-weak-$n" $run workload=gallery workload.m=$((gallery / gpus * n)) collect=host path=shared measure=quick
  common="workload=square workload.n=$square workload.dtype=float64,tf32,bfloat16 measure=quick"
  keep "3-square-m-n-$n" $run -m $common split=m,n collect=none,all_gather
  keep "3-square-k-$n" $run -m $common split=k collect=none,reduce_scatter
  keep "3-square-weak-$n" $run -m $common workload.m=$((square / gpus * n)) workload.k="$square" split=m collect=none
done
keep 4-health $(ranks "$gpus") +experiment=health

# The last GPU (on a CPU: the last core) has other work now, and the run must name it.
if command -v nvidia-smi >/dev/null; then
  timeout 60 python3 -c "
import torch
a = torch.randn(8192, 8192, device='cuda:$last', dtype=torch.bfloat16)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()" &
else
  timeout 60 taskset -c "$last" python3 -c 'while True: pass' &
fi
load=$!
sleep 5
keep 5-health-one-loaded $(ranks "$gpus") +experiment=health
kill "$load" 2>/dev/null || true

#!/usr/bin/env bash
# distbench under torchrun: one host, or the same script on each of several.
#   launch/torchrun.sh workload=square workload.n=4096
#   NNODES=2 HEAD=node0 launch/torchrun.sh workload=square        # on each host
set -euo pipefail

NNODES=${NNODES:-1}    # hosts
NPROC=${NPROC:-gpu}    # ranks on this host: a number, gpu (one for each), or cpu
HEAD=${HEAD:-}         # name or address of one of the hosts, the same on all of them
PORT=${PORT:-29500}    # a free port there

command -v nvidia-smi >/dev/null || [ "$NPROC" != gpu ] || NPROC=2
if [ "$NNODES" = 1 ]; then
  rendezvous=(--standalone)
else
  rendezvous=(--rdzv_backend=c10d --rdzv_endpoint="${HEAD:?set HEAD to one of the hosts}:$PORT" --rdzv_id="${RUN_ID:-distbench}")
fi
exec torchrun --nnodes="$NNODES" --nproc_per_node="$NPROC" "${rendezvous[@]}" -m distbench "$@"

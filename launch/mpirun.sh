#!/usr/bin/env bash
# distbench under Open MPI's mpirun: one rank per process.
#   NP=4 launch/mpirun.sh workload=square
#   NP=16 HOSTS=node0:8,node1:8 launch/mpirun.sh workload=square
set -euo pipefail

NP=${NP:-2}          # ranks in all
HOSTS=${HOSTS:-}     # host:ranks,host:ranks; run this on the first of them. Empty: this host
MPIRUN=${MPIRUN:-mpirun}

options=(-np "$NP" --bind-to none)                          # distbench shares the cores among the ranks itself
[ -z "$HOSTS" ] || options+=(--host "$HOSTS")
[ "$(id -u)" != 0 ] || options+=(--allow-run-as-root)       # as in a container
[ "$NP" -le "$(nproc)" ] || options+=(--oversubscribe)
# Options of your own, such as MPIRUN_OPTIONS="--mca plm_rsh_agent ssh"
# shellcheck disable=SC2206
options+=(${MPIRUN_OPTIONS:-})
exec "$MPIRUN" "${options[@]}" python3 -m distbench "$@"

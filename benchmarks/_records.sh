# What the scripts that make docs/results share: sourced with the folder for the records as its first argument, and after it
# the names of the records wanted (all without any).
set -euo pipefail
out=${1:?folder for the records} names="${*:2}"
mkdir -p "$out"
out=$(cd "$out" && pwd)
export LOGLEVEL=ERROR
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

export XDG_CACHE_HOME=$work/cache # the ceilings of this run, of which its later results tell their share
PYTHONPATH=$(pwd)${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH

wanted() { [[ -z $names || " $names " == *" $1 "* ]]; }

keep() { # NAME COMMAND…: run it in a folder of its own and keep its records; a cell that failed stays among them
  local name=$1
  shift
  wanted "$name" || return 0
  mkdir "$work/$name"
  echo "== $name"
  (cd "$work/$name" && "$@") || echo "$name: exit status $?"
  mv "$work/$name"/*/*/*/results.jsonl "$out/$name.jsonl"
}

one="python3 -m distbench"
two="torchrun --nproc_per_node=2 -m distbench"
three="torchrun --nproc_per_node=3 -m distbench"

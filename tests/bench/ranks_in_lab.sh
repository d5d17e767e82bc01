#!/usr/bin/env bash
# tests/bench/ranks_in_lab.sh RATE RTT [OPTION ...]: one replica with two ranks of one thread, each at a site of a lab
# (tests/wan_lab; needs root) with a link of RATE (100Mbps) and RTT (1ms) between them. Prints the mean of its steps
# and the bytes that rank 0 sent. OPTION: further options of `isthmus launch` (--set replica.average_every=8).
set -euo pipefail
self=$(realpath "${BASH_SOURCE[0]}")
cd "$(dirname "$self")/../.."
program=$PWD/build/release/isthmus lab=$PWD/tests/wan_lab/lab

if [ "${1:-}" != inside ]; then
  [ $# -ge 2 ] || { sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}" >&2 && exit 2; }
  exec "$lab" with --sites 2 --rate "$1" --rtt "$2" -- "$self" inside '{lab}' "${@:3}"
fi

name=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
run() { "$lab" run --name "$name" "$@"; }
address() { run "site-$1" ip -4 -o addr show wan0 | awk '{split($4, part, "/"); print part[1]}'; }
sent() { run site-1 ip -j -s link show wan0 | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["stats64"]["tx"]["bytes"])'; }
before=$(sent)
run site-1 "$program" launch configs/quickstart.yaml --set run.out="$folder" --set replicas=1 --set run.steps=60 \
  --set run.eval_every=0 --set run.sample_tokens=0 --set inner.precision=fp32 --set trainer.threads=1 \
  --set outer.sync_every=30 --set replica.ranks=2 --set replica.machines="$(address 1), $(address 2)" \
  --set "replica.reach=$lab run --name $name site-2 env MACHINE={machine} $program" "$@" >"$folder/log" 2>&1 ||
  { cat "$folder/log" >&2 && exit 1; }
python3 - "$folder" "$before" "$(sent)" <<'PYTHON'
import json, pathlib, statistics, sys
folder, before, after = sys.argv[1:]
(file,) = pathlib.Path(folder).glob("*/replica-0/metrics.jsonl")
rows = [json.loads(line) for line in file.read_text().splitlines()]
steps = [row["step_seconds"] for row in rows if "step_seconds" in row][10:]
print(f"mean of {len(steps)} steps {statistics.mean(steps):.3f} s, median {statistics.median(steps):.3f} s; "
      f"rank 0 sent {(int(after) - int(before)) / 1e6:.0f} MB")
PYTHON

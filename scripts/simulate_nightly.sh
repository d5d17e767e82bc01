#!/usr/bin/env bash
# scripts/simulate_nightly.sh [WORLDS [FROM]]: the protocol in 100,000 simulated worlds (or so many, from that seed on),
# on all cores. Prints what happened in them, and fails if a rule was broken in one; every seed tells its story with
# `simulate --seed N`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
worlds=${1:-100000} from=${2:-1} cores=$(nproc)
simulate=build/release/tests/simulation/simulate
[ -x "$simulate" ] || { echo "build the tests first: scripts/setup.sh --tests release" >&2 && exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

processes=()
for ((core = 0; core < cores; ++core)); do
  first=$((from + worlds * core / cores)) past=$((from + worlds * (core + 1) / cores))
  [ "$past" -gt "$first" ] || continue
  "$simulate" --from "$first" --seeds $((past - first)) --failures 100 >"$work/$core" &
  processes+=($!)
done
status=0
for process in "${processes[@]}"; do wait "$process" || status=1; done

grep -hE '^(seed|  at|  to see it|  never)' "$work"/* || true
echo "$worlds worlds from seed $from on. What happened in them:"
cat "$work"/* | sed -nE 's/^  (.*[^ ]) +([0-9]+) times in ([0-9]+) worlds$/\1\t\2\t\3/p' |
  awk -F '\t' '{ times[$1] += $2; worlds[$1] += $3 }
    END { for (what in times) printf "  %-40s %12d times in %d worlds\n", what, times[what], worlds[what] }' | sort
exit $status

#!/usr/bin/env bash
# tests/bench/outer_in_lab.sh SITES RATE RTT [OPTION ...]: `isthmus bench outer` with one replica at each site of a lab
# with SITES sites (tests/wan_lab; needs root), over TLS. A link of RATE (20Mbps) and RTT (100ms) connects each pair of
# sites. OPTION: further options of `bench outer` (--params, --step-time, --steps, --set, --json).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
program=$PWD/build/release/isthmus-coordinator lab=tests/wan_lab/lab

if [ "${1:-}" != inside ]; then
  [ $# -ge 3 ] || { sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}" >&2 && exit 2; }
  [ -x "$program" ] || { echo "build the release preset first: scripts/setup.sh" >&2 && exit 2; }
  exec "$lab" with --sites "$1" --rate "$2" --rtt "$3" -- "${BASH_SOURCE[0]}" inside '{lab}' "$1" "${@:4}"
fi

name=$2 sites=$3
shift 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$program" certs init run --dir "$folder" >/dev/null
for process in coordinator $(seq -f 'site-%g' "$sites"); do
  "$program" certs issue run "$process" --dir "$folder" >/dev/null
done
run() { "$lab" run --name "$name" "$@"; }
address() { run "site-$1" ip -4 -o addr show wan0 | awk '{split($4, part, "/"); print part[1]}'; }
coordinator=$(address 1):7000
options=(bench outer --replicas "$sites" --certs "$folder/run" "$@")
run site-1 "$program" "${options[@]}" --role coordinator --listen "$coordinator" &
for ((site = 1; site <= sites; ++site)); do
  run "site-$site" "$program" "${options[@]}" --role replica --name "site-$site" --coordinator "$coordinator" \
    --listen "$(address "$site"):7001" >"$folder/site-$site.log" 2>&1 &
done
failed=0
for job in $(jobs -p); do wait "$job" || failed=1; done
[ $failed = 0 ] || cat "$folder"/site-*.log >&2
exit $failed

#!/usr/bin/env bash
# scripts/screenshots.sh [BUILD]: takes the docs' pictures of running programs, docs/pictures/{doctor,top}.svg and
# {dashboard,compare}.png, in some minutes. BUILD is a tree with all tests (default: build/release). The programs run at
# two sites on this machine, 100 Mbit/s and 80 ms apart (tests/wan_lab), so run it as root.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -le 1 ] || { echo "usage: scripts/screenshots.sh [BUILD]" >&2 && exit 2; }
build=$(realpath "${1:-$root/build/release}")
isthmus=$build/isthmus lab=$root/tests/wan_lab/lab name=screenshots-$$ pictures=$root/docs/pictures
[ -x "$isthmus" ] || { echo "$isthmus is missing: scripts/setup.sh --tests builds it" >&2 && exit 1; }
"$lab" list >/dev/null

work=$(mktemp -d)
clean_up() {
  trap '' INT TERM
  "$lab" down --name "$name" || true
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
cd "$work"
"$lab" up --name "$name" --names eu,us --rate 100Mbps --rtt 80ms --forwarder "$build/tests/wan_lab/wan_forwarder"
address() { "$lab" status --name "$name" --json | python3 -c "import json, sys; print(json.load(sys.stdin)['sites']['$1']['ipv4'])"; }
eu=$(address eu) us=$(address us)
at() { "$lab" run --name "$name" "$@"; }

# photograph SITE URL FILE WIDTH HEIGHT: a page in a browser, after five of the page's seconds.
photograph() {
  at "$1" timeout 120 /usr/bin/chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
    --user-data-dir="$work/browser" --hide-scrollbars --window-size="$4,$5" --virtual-time-budget=5000 \
    --screenshot="$3" "$2" 2>"$work/chromium.log" || { cat "$work/chromium.log" >&2 && return 1; }
}

cat >one.yaml <<CONFIG
run: {name: one, out: runs, steps: 300, eval_every: 20, eval_sequences: 64, sample_tokens: 0, checkpoint_every: 150}
device: cpu
model: {layers: 3, dim: 96, heads: 4}
data: {path: $root/.venv/corpus, seq_len: 128}
inner: {batch: 8, lr: 3e-3, warmup_steps: 20}
trainer: {threads: 1}
outer: {num_fragments: 4, sync_every: 20, sync_delay: 4, codec: 4bit}
CONFIG
cat >two_sites.yaml <<CONFIG
extends: one.yaml
run: {name: two-sites}
network: {coordinator: "$eu:7000", certs: certs/two-sites}
dashboard: {listen: 9500}
sites:
  eu: {replicas: 1, network: {listen: "$eu:7001", advertise: "$eu:7001"}}
  us: {replicas: 1, network: {listen: "$us:7001", advertise: "$us:7001"}}
CONFIG
"$isthmus" certs init two-sites >/dev/null
for process in coordinator eu us operator; do "$isthmus" certs issue two-sites $process >/dev/null; done
mv certs/two-sites/ca.key "$work/ca.key" # as at a site

echo "doctor, with a mistake at site us"
wrong=(--set sites.us.data.path=/data/corpus)
at us "$isthmus" doctor two_sites.yaml "${wrong[@]}" --name us --coordinator "$eu:7000" >/dev/null 2>&1 &
at eu "$isthmus" doctor two_sites.yaml "${wrong[@]}" --name eu --coordinator "$eu:7000" >/dev/null 2>&1 &
at eu "$isthmus" doctor two_sites.yaml "${wrong[@]}" --listen "$eu:7000" 2>doctor.log >doctor.txt || [ $? -eq 3 ]
wait
"$root/scripts/draw_terminal.py" "isthmus doctor two_sites.yaml" <doctor.txt >"$pictures/doctor.svg"

echo "top and the dashboard, during a run"
at eu "$isthmus" coordinator two_sites.yaml --listen "$eu:7000" >coordinator.log 2>&1 &
coordinator=$!
for site in eu us; do
  at $site "$isthmus" worker two_sites.yaml --name $site --coordinator "$eu:7000" >$site.log 2>&1 &
done
step() { at eu "$isthmus" ctl status two_sites.yaml --json 2>/dev/null | python3 -c 'import json, sys; print(json.load(sys.stdin)["step"])' 2>/dev/null || echo 0; }
until [ "$(step)" -ge 180 ]; do
  kill -0 $coordinator || { tail coordinator.log eu.log us.log >&2 && exit 1; }
  sleep 1
done
at eu "$root/scripts/draw_terminal.py" --screen "late" "isthmus top two_sites.yaml" \
  "$isthmus" top two_sites.yaml >"$pictures/top.svg"
photograph eu http://127.0.0.1:9500/ "$pictures/dashboard.png" 1100 900
at eu "$isthmus" ctl stop two_sites.yaml >/dev/null
wait

echo "compare's report"
cat >compare.yaml <<CONFIG
base: one.yaml
seeds: [1, 2]
settings: {replicas: 2, run: {steps: 120, eval_every: 10}}
arms:
  data_parallel: {about: gradients averaged at every step, outer.method: data_parallel}
  four_bits: {about: fragments in four bits}
CONFIG
"$isthmus" compare compare.yaml
sed -i "s|$work/||g" runs/compare/report.html # the name of a temporary folder says nothing
photograph eu "file://$(realpath runs/compare/report.html)" "$pictures/compare.png" 1100 900
ls -l "$pictures"

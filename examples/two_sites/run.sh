#!/usr/bin/env bash
# Two sites on this machine, 100 Mbit/s and 80 ms apart, and a run across them from one command:
#
#     examples/two_sites/run.sh [--short] [--keep FOLDER] [--build FOLDER]
#
# Run it as root. It makes a network namespace for each site (tests/wan_lab), starts an sshd in each and issues the
# run's certificates. It checks the sites with `isthmus doctor`, launches over ssh, and kills a worker, which is
# restarted and copies the state from the other. Then it trains the same model at one site, with gradients averaged at
# every step, and compares both runs. That takes a few minutes; --short (for the test) makes fewer steps. Everything is
# removed at the end and on Ctrl-C; --keep FOLDER keeps configs, logs, results and the report there. Exits with 77 and
# the reason if such sites cannot be made on this machine.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/build/release steps=600 warmup=40 eval=20 kill_at=160 single_steps=600 keep=''

usage() { echo "usage: examples/two_sites/run.sh [--short] [--keep FOLDER] [--build FOLDER]" >&2 && exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --short) steps=240 warmup=10 eval=60 kill_at=30 single_steps=30 ;;
    --keep) keep=${2:?$(usage)} && shift ;;
    --build) build=${2:?$(usage)} && shift ;;
    *) usage ;;
  esac
  shift
done

not_here() { echo "$1" >&2 && exit 77; }
isthmus=$build/isthmus lab=$root/tests/wan_lab/lab name=two-sites-$$
[ "$(id -u)" -eq 0 ] || not_here "network namespaces need root: run this as root"
[ -x /usr/sbin/sshd ] || not_here "sshd is not installed: scripts/setup.sh --tests installs it"
for program in "$isthmus" "$build/tests/wan_lab/wan_forwarder"; do
  [ -x "$program" ] || not_here "$program is missing: scripts/setup.sh --tests builds it"
done
"$lab" list >/dev/null || exit $? # prints what is missing, and exits with 77

work=$(mktemp -d) launch=''
# Stops and removes everything that was started: the launch first, then the namespaces it runs in.
clean_up() {
  trap '' INT TERM
  [ -z "$launch" ] || kill -INT "$launch" 2>/dev/null || true
  [ -z "$launch" ] || wait "$launch" 2>/dev/null || true
  "$lab" down --name "$name" || true
  [ -z "$keep" ] || { mkdir -p "$keep" && cp -r "$work"/{wan.yaml,single.yaml,runs,eu,us} "$keep" 2>/dev/null; } || true
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

say() { printf '\n== %s\n' "$*"; }

say "two sites, 100 Mbit/s and 80 ms apart"
"$lab" up --name "$name" --names eu,us --rate 100Mbps --rtt 80ms --forwarder "$build/tests/wan_lab/wan_forwarder"
address() { "$lab" status --name "$name" --json | python3 -c "import json, sys; print(json.load(sys.stdin)['sites']['$1']['ipv4'])"; }
eu=$(address eu) us=$(address us)

# ---- an sshd in each namespace, with keys made for this run
mkdir -p /run/sshd
for key in host user; do ssh-keygen -q -t ed25519 -N '' -f "$work/$key"; done
for ip in "$eu" "$us"; do
  echo "[$ip]:2222 $(cut -d' ' -f1,2 "$work/host.pub")" >>"$work/known_hosts"
  cat >"$work/sshd_$ip" <<CONFIG
ListenAddress $ip:2222
HostKey $work/host
AuthorizedKeysFile $work/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
CONFIG
done
"$lab" run --name "$name" eu /usr/sbin/sshd -f "$work/sshd_$eu" -E "$work/sshd_eu.log"
"$lab" run --name "$name" us /usr/sbin/sshd -f "$work/sshd_$us" -E "$work/sshd_us.log"

# ---- the run
cat "$root"/*/*.cpp "$root"/*/*.h >"$work/corpus.txt"
cd "$work"
"$isthmus" certs init two-sites >/dev/null
for process in coordinator eu us; do "$isthmus" certs issue two-sites $process >/dev/null; done
cat >single.yaml <<CONFIG
run: {name: single, out: runs, steps: $steps, eval_every: $eval, eval_sequences: 64, sample_tokens: 0, checkpoint_every: $steps}
device: cpu
model: {layers: 3, dim: 96, heads: 4}
data: {path: corpus.txt, seq_len: 128}
inner: {batch: 4, lr: 3e-3, warmup_steps: 20, precision: fp32}
trainer: {threads: 1}
outer: {num_fragments: 4, sync_every: 20, sync_delay: 4, codec: 4bit, error_feedback: true, warmup_steps: $warmup}
CONFIG
site() {
  cat <<CONFIG
  $1:
    launch:
      ssh: $(id -un)@$2
      port: 2222
      identity: user
      options: [UserKnownHostsFile=$work/known_hosts, GlobalKnownHostsFile=/dev/null]
      program: $isthmus
      folder: $work/$1
    network: {listen: "$2:7001", advertise: "$2:7001"}
CONFIG
}
cat >wan.yaml <<CONFIG
extends: single.yaml
run: {name: two-sites, restarts: 1}
network: {coordinator: "$eu:7000", certs: certs/two-sites, lanes: 2, detect_timeout: 5s}
sites:
$(site eu "$eu")
$(site us "$us")
CONFIG

say "isthmus doctor wan.yaml, at site eu"
"$lab" run --name "$name" eu "$isthmus" doctor wan.yaml

say "isthmus launch wan.yaml, at site eu"
"$lab" run --name "$name" eu "$isthmus" launch wan.yaml &
launch=$!

# ---- a worker is killed, and comes back
steps_of() {
  local steps
  steps=$(grep -cs '"loss"' us/two-sites/us/metrics.jsonl) || true
  echo "${steps:-0}"
}
ended() { ! kill -0 "$launch" 2>/dev/null; }
# Kill it long before the end: the other site alone is fast, and a worker that comes back too late cannot rejoin.
until ended || [ "$(steps_of)" -ge "$kill_at" ]; do sleep 0.2; done
ended || {
  say "killing the worker of site us at step $(steps_of)"
  pkill -KILL -f "worker --quiet --config $work/us/" || true
}
status=0
wait "$launch" || status=$?
launch=''
[ $status -eq 0 ] || { echo "the run ended with status $status" >&2 && exit 1; }
grep -q "takes part from step" runs/two-sites/us/worker.log || { echo "the killed worker did not come back" >&2 && exit 1; }

say "the same model at one site, with gradients averaged at every step"
"$isthmus" launch single.yaml --set replicas=2 --set outer.method=data_parallel --set "run.steps=$single_steps" | tail -n 12

say "results"
cat >compare.yaml <<'CONFIG'
name: two-sites-and-one
arms:
  one_site: {about: gradients averaged at every step, runs: runs/single}
  two_sites: {about: "100 Mbit/s and 80 ms between them, one lost for a while", runs: runs/two-sites}
CONFIG
"$isthmus" compare compare.yaml
hashes=$(python3 -c "import json; print(len(set(json.load(open('runs/two-sites/summary.json'))['global_hash'].values())))")
[ "$hashes" -eq 1 ] || { echo "the sites have $hashes different global parameters" >&2 && exit 1; }
echo "the global parameters are equal at both sites"

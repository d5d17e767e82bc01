#!/usr/bin/env bash
# scripts/simulate_nightly.sh [WORLDS [FROM]]: the protocol in 100,000 simulated worlds (or so many, from that seed on),
# on all cores. Prints what happened in them, and fails if a rule was broken in one; every seed tells its story with
# `simulate --seed N`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
simulate=build/release/tests/simulation/simulate
[ -x "$simulate" ] || { echo "build the tests first: scripts/setup.sh --tests release" >&2 && exit 2; }
exec "$simulate" --seeds "${1:-100000}" --from "${2:-1}" --failures 100

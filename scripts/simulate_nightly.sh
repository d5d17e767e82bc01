#!/usr/bin/env bash
# scripts/simulate_nightly.sh [WORLDS [FROM]]: runs the protocol in WORLDS simulated worlds (default: 100,000) with the
# seeds from FROM on (default: 1), on all cores. Prints a summary of their events, and fails if any world broke a rule.
# `simulate --seed N` prints the events of one world.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
simulate=build/release/tests/simulation/simulate
[ -x "$simulate" ] || { echo "build the tests first: scripts/setup.sh --tests release" >&2 && exit 2; }
exec "$simulate" --seeds "${1:-100000}" --from "${2:-1}" --failures 100

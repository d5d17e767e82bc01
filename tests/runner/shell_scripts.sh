#!/usr/bin/env bash
# tests/runner/shell_scripts.sh: runs shellcheck on all shell scripts of the checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mapfile -t scripts < <(git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run)
for script in "${scripts[@]}"; do bash -n "$script"; done
shellcheck "${scripts[@]}"

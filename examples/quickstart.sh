#!/usr/bin/env bash
# Two replicas on this machine train a small byte-level model on libtorch's own C++ headers:
#
#     examples/quickstart.sh [--build-only] [--set key=value ...]
#
# The first run installs and builds all that is missing (see scripts/setup.sh); the arguments go to `isthmus launch`.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

build_only=no arguments=()
for argument in "$@"; do
  if [ "$argument" = --build-only ]; then build_only=yes; else arguments+=("$argument"); fi
done
"$root/scripts/setup.sh" release
[ $build_only = no ] || exit 0
exec "$root/build/release/isthmus" launch "$root/configs/quickstart.yaml" "${arguments[@]}"

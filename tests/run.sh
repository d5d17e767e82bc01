#!/usr/bin/env bash
# tests/run.sh [--long] [--build-only]: builds the release, AddressSanitizer and ThreadSanitizer trees (the sanitizers
# without libtorch) and runs the tests of each, the checks of the sources among them, and clang-tidy over the sources that
# the change touches. --long also runs what takes minutes, and the fuzzers with libFuzzer. The last line counts the single
# tests that passed, failed and were skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build_only=no options=() presets=(release asan tsan)
for argument in "$@"; do
  case $argument in
    --build-only) build_only=yes ;;
    --long) options+=(--long) presets+=(fuzz) ;;
    *) echo "tests/run.sh: unknown argument: $argument; usage: tests/run.sh [--long] [--build-only]" >&2 && exit 2 ;;
  esac
done

trees=()
for preset in "${presets[@]}"; do
  if scripts/setup.sh --tests "$preset"; then trees+=("build/$preset"); else options+=(--failed "build of $preset"); fi
done
if [ $build_only = yes ]; then
  trees=()
else
  echo "== clang-tidy"
  scripts/tidy.sh --changed || options+=(--failed "clang-tidy of what changed")
fi
exec python3 -B tests/runner/run_trees.py "${options[@]}" "${trees[@]}"

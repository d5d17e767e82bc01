#!/usr/bin/env bash
# tests/run.sh [--long] [--build-only]: builds the release, AddressSanitizer and ThreadSanitizer trees (the sanitizers
# without libtorch), runs the tests of each, including the checks of the sources, and clang-tidy on changed sources.
# --long also runs tests that take minutes or are variants of others, and the fuzzers with libFuzzer. The last line counts the single tests that
# passed, failed and were skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build_only=no options=() presets=(tsan release asan)
for argument in "$@"; do
  case $argument in
    --build-only) build_only=yes ;;
    --long) options+=(--long) presets+=(fuzz) ;;
    *) echo "tests/run.sh: unknown argument: $argument; usage: tests/run.sh [--long] [--build-only]" >&2 && exit 2 ;;
  esac
done

# run_trees.py installs the Python packages and builds all trees except the first while tests of those before run, since
# many tests wait most of the time. The first tree is the quickest to build, and needs no Python package.
trees=()
for preset in "${presets[@]}"; do
  if [ ${#trees[@]} -gt 0 ] && [ $build_only = no ] || scripts/setup.sh --tests "$preset"; then
    trees+=("build/$preset")
  else
    options+=(--failed "build of $preset")
  fi
done
[ $build_only = no ] || exit $((${#trees[@]} != ${#presets[@]}))
exec python3 -B tests/runner/run_trees.py "${options[@]}" --build scripts/setup.sh \
  --check "clang-tidy of changed sources" "scripts/tidy.sh --changed" "${trees[@]}"

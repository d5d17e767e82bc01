#!/usr/bin/env bash
# tests/run.sh [--long] [--build-only]: builds the release, AddressSanitizer and ThreadSanitizer trees (the sanitizers
# without libtorch) and runs the tests of each, the checks of the sources among them, and clang-tidy over the sources that
# the change touches. --long also runs what takes minutes, and the fuzzers with libFuzzer. The last line counts the single
# tests that passed, failed and were skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build_only=no options=() presets=(release tsan asan)
for argument in "$@"; do
  case $argument in
    --build-only) build_only=yes ;;
    --long) options+=(--long) presets+=(fuzz) ;;
    *) echo "tests/run.sh: unknown argument: $argument; usage: tests/run.sh [--long] [--build-only]" >&2 && exit 2 ;;
  esac
done

# After the first tree run_trees.py builds the others, while its tests run: many of them wait most of the time. Of the
# sanitizers' trees the one whose tests take longest is built first.
trees=()
for preset in "${presets[@]}"; do
  if [ ${#trees[@]} -gt 0 ] && [ $build_only = no ] || scripts/setup.sh --tests "$preset"; then
    trees+=("build/$preset")
  else
    options+=(--failed "build of $preset")
  fi
done
[ $build_only = no ] || exit $((${#trees[@]} != ${#presets[@]}))
echo "== clang-tidy"
scripts/tidy.sh --changed || options+=(--failed "clang-tidy of what changed")
exec python3 -B tests/runner/run_trees.py "${options[@]}" --build scripts/setup.sh "${trees[@]}"

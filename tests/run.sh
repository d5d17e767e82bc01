#!/usr/bin/env bash
# tests/run.sh [--build-only]: builds the release, AddressSanitizer and ThreadSanitizer trees (the sanitizers without
# libtorch), runs the tests of each and the checks of the sources. The last line says how many passed and failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build_only=no
case ${1-} in
  "") ;;
  --build-only) build_only=yes ;;
  *) echo "usage: tests/run.sh [--build-only]" >&2 && exit 2 ;;
esac

passed=0 failed=0 failures=()

# check NAME COMMAND...: one check, passed or failed by the command's exit status.
check() {
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1)) failures+=("$name")
  fi
}

# Address space randomisation of more bits than g++ 12's ThreadSanitizer knows, as newer kernels have it, stops it at
# once; not every container may switch it off.
plainly() { if setarch -R true 2>/dev/null; then setarch -R "$@"; else "$@"; fi; }

# Runs the tests of one tree and adds them to the totals.
run_tests() {
  local preset=$1 report=$PWD/build/logs/tests-$1.xml suite tests bad skipped
  echo "== tests of $preset"
  rm -f "$report"
  plainly ctest --test-dir "build/$preset" --parallel "$(nproc)" --output-on-failure --no-tests=error --output-junit "$report" || true
  # One line of attributes: <testsuite name=... tests="9" failures="0" disabled="0" skipped="0" ...
  suite=$(tr -s '\n\t ' ' ' <"$report" 2>/dev/null | grep -o '<testsuite [^>]*>') || suite=
  count() { grep -oE "$1=\"[0-9]+\"" <<<"$suite" | grep -oE '[0-9]+' || echo 0; }
  tests=$(count tests) bad=$(count failures) skipped=$(($(count skipped) + $(count disabled)))
  passed=$((passed + tests - bad - skipped)) failed=$((failed + bad))
  [ "$bad" -eq 0 ] || failures+=("$bad of the tests of $preset")
  [ "$tests" -gt 0 ] || check "tests of $preset: none ran" false
}

shell_scripts() {
  local scripts
  mapfile -t scripts < <(git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run)
  for script in "${scripts[@]}"; do bash -n "$script" || return; done
  shellcheck "${scripts[@]}"
}

built=()
for preset in release asan tsan; do
  check "build of $preset" scripts/setup.sh --tests "$preset"
  [ -z "${failures[*]-}" ] || [ "${failures[-1]}" != "build of $preset" ] || continue
  built+=("$preset")
done
if [ $build_only = no ]; then
  for preset in "${built[@]}"; do run_tests "$preset"; done
  echo "== checks of the sources"
  check "format (scripts/format.sh mends it)" scripts/format.sh --check
  check "shell scripts" shell_scripts
fi

[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]

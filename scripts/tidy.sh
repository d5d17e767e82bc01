#!/usr/bin/env bash
# scripts/tidy.sh [--all | --changed | FILE ...]: runs clang-tidy with the checks in .clang-tidy over our C++ sources,
# file by file, as the debug preset compiles them (the preset is configured, not built). Files in trainer/, app/ and
# python/ take about half a minute each because of the headers of libtorch and nanobind, so they are checked only with
# --all, by name, or when changed.
#
# --changed checks the files that differ from the branch to merge into, uncommitted changes included, or, if none
# differ, the files of the last commit. A header is checked through one source that includes it. Files that would take
# more than about two minutes on two cores are listed and left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

budget=32 slow_cost=6 # a source without libtorch costs 1
quick_folders=(base quant data outer_sync)
slow_folders=(trainer app python)

die() { echo "scripts/tidy.sh: $*" >&2 && exit 1; }

database=build/debug/compile_commands.json
cmake --preset debug >/dev/null || die "cannot configure build/debug; run scripts/setup.sh first"
clang_tidy=$(command -v clang-tidy-14 || command -v clang-tidy) ||
  die "clang-tidy is not installed; run scripts/setup.sh --tests, or install the package clang-tidy-14"

# clang 14 compiles C++20 coroutines but does not announce them, so libstdc++ and Asio would leave theirs out: define
# the macros. It also ignores warning options that only g++ knows.
extra=(-D__cpp_impl_coroutine=201902L -DASIO_HAS_CO_AWAIT=1 -DASIO_HAS_STD_COROUTINE=1 -Wno-unknown-warning-option)
# Without OpenMP: clang cannot read g++'s omp.h and may not have its own. libtorch's headers then do without it too.
extra+=(-fno-openmp -Wno-source-uses-openmp)

compiled() { grep -qF "\"file\": \"$PWD/$1\"" $database; }

# sources PATTERN...: lists matching files that git tracks or would add.
sources() { git ls-files --cached --others --exclude-standard -- "$@"; }

# changed_files PATTERN...: lists the files that --changed compares: of the change, or else of the last commit.
changed_files() {
  local upstream base files
  upstream=$(git rev-parse --verify --quiet '@{upstream}' 2>/dev/null || git rev-parse --verify --quiet origin/HEAD || echo HEAD)
  base=$(git merge-base HEAD "$upstream" || echo HEAD)
  files=$(git diff --name-only --diff-filter=d "$base" -- "$@" && git ls-files --others --exclude-standard -- "$@")
  if [ -z "$files" ] && git diff --quiet "$base" && git rev-parse --verify --quiet HEAD~1 >/dev/null; then
    files=$(git diff --name-only --diff-filter=d HEAD~1 HEAD -- "$@")
  fi
  [ -z "$files" ] || sort -u <<<"$files"
}

# source_of HEADER: prints one source that includes it, preferably the one of the same name.
source_of() {
  local source name=${1##*/} included=${1#*/}
  while read -r source; do
    if compiled "$source"; then
      echo "$source"
      return
    fi
  done < <(git grep --untracked -lF "#include \"${included#include/}\"" -- "${quick_folders[@]/%//*.cpp}" "${slow_folders[@]/%//*.cpp}" |
    awk -v own="/${name%.h}.cpp" '{print (substr($0, length($0) - length(own) + 1) == own ? 0 : 1), $0}' | sort -k 1,1 -s | cut -d " " -f 2)
}

# Prints the sources that --changed checks.
changed_sources() {
  local file source cost left=$budget left_out=()
  while read -r source; do
    cost=1
    [[ ! $source =~ ^($(IFS='|' && echo "${slow_folders[*]}"))/ ]] || cost=$slow_cost
    if ((cost <= left)); then
      left=$((left - cost))
      echo "$source"
    else
      left_out+=("$source")
    fi
  done < <(changed_files "${quick_folders[@]/%//*.[ch]*}" "${slow_folders[@]/%//*.[ch]*}" |
    while read -r file; do
      case $file in
        *.cpp) echo "$file" ;;
        *.h) source_of "$file" ;;
      esac
    done | awk '!seen[$0]++')
  [ ${#left_out[@]} -eq 0 ] || echo "not checked by clang-tidy, as the change is large; check them with: scripts/tidy.sh ${left_out[*]}" >&2
}

case ${1-} in
  "") mapfile -t files < <(sources "${quick_folders[@]/%//*.cpp}") ;;
  --all) mapfile -t files < <(sources "${quick_folders[@]/%//*.cpp}" "${slow_folders[@]/%//*.cpp}") ;;
  --changed) mapfile -t files < <(changed_sources) ;;
  -*) die "unknown argument: $1; usage: scripts/tidy.sh [--all | --changed | FILE ...]" ;;
  *) files=("$@") ;;
esac

# Only sources that the build compiles. clang cannot read g++'s precompiled headers.
for file in "${files[@]}"; do
  ! compiled "$file" || printf '%s\0' "$file"
done | xargs -0 -r -n 1 -P "$(nproc)" "$clang_tidy" -p build/debug --quiet "${extra[@]/#/--extra-arg=}"

#!/usr/bin/env bash
# scripts/tidy.sh [--all | --changed | FILE ...]: clang-tidy with the checks in .clang-tidy over our C++ sources, as the
# debug preset compiles them, file by file (it is configured here, not built). trainer/ and app/ take about half a minute
# a file, for libtorch's headers, so they are read only with --all, by name, or when they are changed.
#
# --changed reads what differs from the branch that this one is to be merged into, uncommitted changes included; if
# nothing does, what the last commit touched. A header is read through one source that includes it. What does not fit
# into about two minutes on two cores is named and left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

budget=32 slow_cost=6 # a source without libtorch costs 1
quick_folders=(base quant data outer_sync)
slow_folders=(trainer app)

die() { echo "scripts/tidy.sh: $*" >&2 && exit 1; }

database=build/debug/compile_commands.json
cmake --preset debug >/dev/null || die "cannot configure build/debug; run scripts/setup.sh first"
clang_tidy=$(command -v clang-tidy-14 || command -v clang-tidy) ||
  die "there is no clang-tidy; run scripts/setup.sh --tests, or install the package clang-tidy-14"

# clang 14 compiles C++20's coroutines but does not say so, on which libstdc++ and Asio leave theirs out; and it need not
# know the warnings that g++ is told about.
extra=(-D__cpp_impl_coroutine=201902L -DASIO_HAS_CO_AWAIT=1 -DASIO_HAS_STD_COROUTINE=1 -Wno-unknown-warning-option)
# Without OpenMP, whose header clang cannot read from g++ and may not have itself; libtorch then does without it too.
extra+=(-fno-openmp -Wno-source-uses-openmp)

compiled() { grep -qF "\"file\": \"$PWD/$1\"" $database; }

# sources PATTERN...: of the files that git knows or would add.
sources() { git ls-files --cached --others --exclude-standard -- "$@"; }

# The changed files, by name: of the change, otherwise of the last commit.
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

# source_of HEADER: one source that includes it, that of the same name if it does.
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

# Prints what --changed reads.
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
  [ ${#left_out[@]} -eq 0 ] || echo "not read by clang-tidy, as the change is large: scripts/tidy.sh ${left_out[*]}" >&2
}

case ${1-} in
  "") mapfile -t files < <(sources "${quick_folders[@]/%//*.cpp}") ;;
  --all) mapfile -t files < <(sources "${quick_folders[@]/%//*.cpp}" "${slow_folders[@]/%//*.cpp}") ;;
  --changed) mapfile -t files < <(changed_sources) ;;
  -*) die "unknown argument: $1; usage: scripts/tidy.sh [--all | --changed | FILE ...]" ;;
  *) files=("$@") ;;
esac

# Only what the build compiles; clang does not read the precompiled headers that g++ made.
for file in "${files[@]}"; do
  ! compiled "$file" || printf '%s\0' "$file"
done | xargs -0 -r -n 1 -P "$(nproc)" "$clang_tidy" -p build/debug --quiet "${extra[@]/#/--extra-arg=}"

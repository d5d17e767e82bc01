#!/usr/bin/env bash
# scripts/tidy.sh [--all] [FILE ...]: clang-tidy with the checks in .clang-tidy over our C++ sources, as the debug preset
# compiles them, file by file (it is configured here, not built). trainer/ and app/ take about half a minute a file, for
# libtorch's headers, so they are read only with --all or by name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

database=build/debug/compile_commands.json
cmake --preset debug >/dev/null || { echo "cannot configure build/debug; run scripts/setup.sh first" >&2 && exit 1; }
clang_tidy=$(command -v clang-tidy-14 || command -v clang-tidy) ||
  { echo "no clang-tidy; install the package clang-tidy-14" >&2 && exit 1; }

# clang 14 compiles C++20's coroutines but does not say so, on which libstdc++ and Asio leave theirs out; and it need not
# know the warnings that g++ is told about.
extra=(-D__cpp_impl_coroutine=201902L -DASIO_HAS_CO_AWAIT=1 -DASIO_HAS_STD_COROUTINE=1 -Wno-unknown-warning-option)

slow=no files=()
for argument in "$@"; do
  if [ "$argument" = --all ]; then slow=yes; else files+=("$argument"); fi
done
if [ ${#files[@]} -eq 0 ]; then
  folders=(base quant data outer_sync)
  [ $slow = no ] || folders+=(trainer app)
  mapfile -t files < <(git ls-files --cached --others --exclude-standard -- "${folders[@]/%//*.cpp}")
fi

# Only what the build compiles; clang does not read the precompiled headers that g++ made.
for file in "${files[@]}"; do
  ! grep -qF "\"file\": \"$PWD/$file\"" $database || printf '%s\0' "$file"
done | xargs -0 -r -n 1 -P "$(nproc)" "$clang_tidy" -p build/debug --quiet "${extra[@]/#/--extra-arg=}"

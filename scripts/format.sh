#!/usr/bin/env bash
# scripts/format.sh formats the C++ and CUDA sources in place; with --check it only reports the places it would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

how=(-i)
case ${1-} in
  "") ;;
  --check) how=(--dry-run --Werror) ;;
  *) echo "usage: scripts/format.sh [--check]" >&2 && exit 2 ;;
esac

# Every version formats differently: use the one pinned by `scripts/setup.sh --tests`, or another release of version 14.
for clang_format in .venv/bin/clang-format clang-format-14 clang-format ""; do
  if [ -z "$clang_format" ]; then
    echo "no clang-format 14; run scripts/setup.sh --tests --setup-only" >&2
    exit 1
  fi
  ! "$clang_format" --version 2>/dev/null | grep -q 'version 14\.' || break
done

# Includes new files that were not added to git yet; excludes deleted files that git still lists.
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' |
  while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done |
  xargs -0 -r "$clang_format" "${how[@]}"

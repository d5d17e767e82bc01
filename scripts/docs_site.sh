#!/usr/bin/env bash
# scripts/docs_site.sh [FOLDER]: builds the documentation as a site in FOLDER (default: build/site), by mkdocs.yml. It
# needs no network, and the site neither. A link to a missing page or heading is an error.
set -euo pipefail
[ $# -le 1 ] || { echo "usage: scripts/docs_site.sh [FOLDER]" >&2 && exit 2; }
folder=$(realpath -m "${1:-$(dirname "$0")/../build/site}")
cd "$(dirname "$0")/.."
.venv/bin/python -c 'import material' 2>/dev/null || {
  echo "error: .venv has no mkdocs-material. Install it, then run this again: scripts/setup.sh --tests --setup-only" >&2
  exit 1
}
# Without the theme's advertisement for its successor; -B: no __pycache__ in the tree.
# Not --quiet, with which --strict finds nothing.
output=$(NO_MKDOCS_2_WARNING=1 .venv/bin/python -B -m mkdocs build --strict --site-dir "$folder" 2>&1) || {
  grep -v '^INFO' <<<"$output" >&2
  echo "error: the site has the problems above. Correct the links, or list the page in docs/README.md, and run this again." >&2
  exit 1
}
echo "Open file://$folder/index.html, or copy $folder to a web server."

#!/usr/bin/env bash
# completion_zsh.sh BINARY: checks zsh's options for a command, with the completion loaded like in a user's zsh.
set -euo pipefail
command -v zsh >/dev/null || { echo "zsh is missing: scripts/setup.sh --tests installs it" && exit 77; }
script=$(mktemp)
trap 'rm -f "$script"' EXIT
"$1" completion zsh >"$script"
zsh -n "$script"
got=$(zsh -f -c "autoload -Uz compinit && compinit -u -D && source '$script' && _isthmus_options 'data show' && echo \$out")
[[ $got == *--verify* ]] || { echo "zsh offers for data show: '$got'" >&2 && exit 1; }

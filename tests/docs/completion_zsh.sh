#!/usr/bin/env bash
# completion_zsh.sh BINARY: what zsh has for a verb when it has loaded the completion as a user's zsh does.
set -euo pipefail
command -v zsh >/dev/null || { echo "there is no zsh: scripts/setup.sh --tests installs it" && exit 77; }
script=$(mktemp)
trap 'rm -f "$script"' EXIT
"$1" completion zsh >"$script"
zsh -n "$script"
got=$(zsh -f -c "autoload -Uz compinit && compinit -u -D && source '$script' && _isthmus_options 'data show' && echo \$out")
[[ $got == *--verify* ]] || { echo "zsh has for data show: '$got'" >&2 && exit 1; }

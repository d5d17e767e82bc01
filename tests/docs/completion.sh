#!/usr/bin/env bash
# completion.sh BINARY: checks the completions that bash offers for incomplete lines.
set -euo pipefail
binary=$1
script=$(mktemp)
trap 'rm -f "$script"' EXIT
"$binary" completion bash >"$script"
# shellcheck disable=SC1090 # made by the binary
source "$script"
failed=0

# offered "WANTED WORDS" WORD...: checks bash's offers for the last word, in order. For bash, `=` is a separate word.
offered() {
  local wanted=$1 got
  shift
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  COMPREPLY=()
  _isthmus
  got=${COMPREPLY[*]-}
  [ "$got" != "$wanted" ] || return 0
  echo "'$*': expected '$wanted', but '$got' is offered" >&2
  failed=1
}

# bash defines it only during completion.
# shellcheck disable=SC2317 # called by the binary's script
compopt() { :; }

offered launch isthmus la
offered "--explain" isthmus config --ex
offered "--resume" isthmus launch --resu
offered "outer.sync_every=" isthmus launch --set outer.sync_e
offered "outer.sync_every= outer.sync_delay=" isthmus worker --set outer.sy
offered "outer.sync_delay" isthmus config --explain outer.sync_d
offered "int8 int4" isthmus launch --set outer.codec = in
offered "true false" isthmus launch --set outer.final_sync =
offered "lz4" isthmus data tokenize --codec l
offered "tokenize tune" isthmus data t
offered "zsh" isthmus completion z
offered "" isthmus launch quick
options=$(COMP_WORDS=(isthmus launch --) COMP_CWORD=2 && _isthmus && echo "${COMPREPLY[*]}")
for option in $options; do
  "$binary" launch --help | grep -q -- "$option\b" || { echo "launch --help does not contain $option" >&2 && failed=1; }
done
[ "$(wc -w <<<"$options")" -ge 4 ] || { echo "only '$options' of launch's options are offered" >&2 && failed=1; }
exit $failed

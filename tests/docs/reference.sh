#!/bin/sh
# reference.sh BINARY FILE WORD...: fails if FILE differs from the output of `BINARY WORD...`.
binary=$1 file=$2
shift 2
if "$binary" "$@" | diff "$file" -; then exit 0; fi
echo "$file differs from the build's output; update it: build/release/isthmus $* > $file" >&2
exit 1

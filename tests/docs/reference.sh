#!/bin/sh
# reference.sh BINARY FILE WORD...: fails when FILE is not what `BINARY WORD...` prints.
binary=$1 file=$2
shift 2
if "$binary" "$@" | diff "$file" -; then exit 0; fi
echo "$file is not what the build prints; mend it: build/release/isthmus $* > $file" >&2
exit 1

#!/bin/sh
# config_reference.sh ISTHMUS FILE: fails when FILE is not the reference that this build prints.
if "$1" config | diff "$2" -; then exit 0; fi
echo "docs/config.md is not what the build prints; mend it: build/release/isthmus config > docs/config.md" >&2
exit 1

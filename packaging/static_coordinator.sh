#!/usr/bin/env bash
# packaging/static_coordinator.sh, run on Debian 12, makes dist/isthmus-coordinator-linux-x86_64.tar.gz: the statically
# linked program, which runs on any Linux for x86-64, with the licences of everything in it. The tarball gets its name
# only when it is complete.
set -euo pipefail
[ $# -eq 0 ] || { echo "usage: packaging/static_coordinator.sh (no arguments)" >&2 && exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh --static
mkdir -p build/static-libraries
exec 8>build/static-libraries/lock
flock -n 8 || { echo "waiting for another static_coordinator.sh, which holds build/static-libraries/lock" >&2 && flock 8; }
packaging/static_libraries.sh build/static-libraries
cmake --preset static
cmake --build --preset static

program=build/static/isthmus-coordinator
if readelf --program-headers --dynamic $program | grep -E 'INTERP|NEEDED'; then
  echo "error: $program is not static; see the lines above" >&2
  exit 1
fi

stage=build/static/tarball/isthmus-coordinator
rm -rf build/static/tarball
mkdir -p $stage dist
cp $program LICENSE $stage/
cp packaging/coordinator.md $stage/README.md
# The compiler's and the C library's archives are linked without being named as inputs of the build.
mapfile -t runtime < <(for library in libc.a libm.a libstdc++.a libgcc.a libgcc_eh.a; do g++ -print-file-name=$library; done)
packaging/third_party.sh $stage/third-party build/static isthmus-coordinator "${runtime[@]}"
cp build/static-libraries/licences/*.txt $stage/third-party/
name=isthmus-coordinator-linux-x86_64.tar.gz
tar -C build/static/tarball --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" \
  -cf - isthmus-coordinator | gzip -9n >dist/.$name.tmp
mv dist/.$name.tmp dist/$name
echo "dist/$name"

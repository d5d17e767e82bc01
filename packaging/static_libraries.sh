#!/usr/bin/env bash
# packaging/static_libraries.sh PREFIX: builds the coordinator's libraries that Debian 12 does not ship in static form,
# from Debian's own sources, into PREFIX. It skips a library that was already built in the pinned version, and restarts
# an unfinished build. PREFIX/licences gets Debian's copyright file of each library.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=packaging/debian.sh
source "$here/debian.sh"
[ $# -eq 1 ] || { echo "usage: packaging/static_libraries.sh PREFIX" >&2 && exit 2; }
mkdir -p "$1/done" "$1/licences" "$1/sources"
prefix=$(cd "$1" && pwd)

# Source package, version, and the function that builds it. The versions are Debian 12's, as in all other builds, so the
# headers match.
libraries=(
  "cpp-httplib    0.11.4+ds-1+deb12u1     httplib"
  "fmtlib         9.1.0+ds1-2             with_cmake -DFMT_TEST=OFF -DFMT_DOC=OFF"
  "highway        1.0.3-3+deb12u1         with_cmake -DBUILD_TESTING=OFF -DHWY_ENABLE_CONTRIB=OFF -DHWY_ENABLE_EXAMPLES=OFF"
  "sentencepiece  0.1.97-3                sentencepiece"
  "simdjson       3.0.1-1                 with_cmake -DSIMDJSON_DEVELOPER_MODE=OFF"
  "prometheus-cpp 1.0.1-1                 with_cmake -DENABLE_PULL=OFF -DENABLE_PUSH=OFF -DENABLE_COMPRESSION=OFF -DENABLE_TESTING=OFF"
  "libisal        2.30.0-5                libisal"
)

with_cmake() {
  cmake -S . -B made -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    "-DCMAKE_INSTALL_PREFIX=$prefix" -DCMAKE_INSTALL_LIBDIR=lib "$@"
  cmake --build made
  cmake --install made
}

# Debian's patch drops the static library, so it is reverted. SentencePiece's trainer is not built: nothing needs it.
sentencepiece() {
  patch -R -p1 <debian/patches/disable-static-library.patch
  cmake -S . -B made -G Ninja -DCMAKE_BUILD_TYPE=Release -DSPM_ENABLE_SHARED=OFF -DSPM_ENABLE_TCMALLOC=OFF
  cmake --build made --target sentencepiece-static
  install -D -m 644 -t "$prefix/lib" made/src/libsentencepiece.a
  install -D -m 644 -t "$prefix/include" src/sentencepiece_processor.h
}

# Without the library the header has all of the code.
httplib() { install -D -m 644 -t "$prefix/include" httplib.h; }

libisal() {
  make -f Makefile.unx -j "$(nproc)" lib
  install -D -m 644 bin/isa-l.a "$prefix/lib/libisal.a"
  install -D -m 644 -t "$prefix/include/isa-l" include/*.h
}

build_one() {
  local name=$1 version=$2
  shift 2
  cd "$prefix/sources"
  rm -rf "$name"
  private_apt "$prefix/apt" "deb-src bookworm main" source --download-only "$name=$version"
  dpkg-source -x "${name}_${version#*:}.dsc" "$name"
  cd "$name"
  "$@"
  cp debian/copyright "$prefix/licences/$name.txt"
}

for library in "${libraries[@]}"; do
  read -r -a words <<<"$library"
  name=${words[0]} version=${words[1]} make=("${words[@]:2}")
  stamp=$prefix/done/$name
  [ "$(cat "$stamp" 2>/dev/null)" != "$library" ] || continue
  rm -f "$stamp"
  log=$prefix/$name.log
  printf 'building %s %s ... ' "$name" "$version" >&2
  # Not as a condition of `if`: `set -e` has no effect there, so failures inside would go unnoticed.
  set +e
  (set -e && build_one "$name" "$version" "${make[@]}") >"$log" 2>&1
  status=$?
  set -e
  if [ $status -ne 0 ]; then
    echo "FAILED" >&2
    tail -n 20 "$log" | cut -c 1-300 >&2
    echo "error: $name $version was not built; the complete log is $log. If Debian now has another version, change it in $0" >&2
    exit 1
  fi
  rm -rf "$prefix/sources/$name"
  echo "$library" >"$stamp"
  echo "done" >&2
done

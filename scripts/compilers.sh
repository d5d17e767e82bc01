#!/usr/bin/env bash
# scripts/compilers.sh [VERSION ...]: compiles programs and tests with newer versions of g++ (default: 13 and 14), with
# warnings as errors, in a Debian 13 made by debootstrap; without CUDA and the Python binding. Needs root, the network,
# and the .venv of scripts/setup.sh. FRESH=DIR keeps the system and the builds in DIR for later runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=packaging/debian.sh
source packaging/debian.sh
# shellcheck source=scripts/pinned.sh
source scripts/pinned.sh

refuse() {
  echo "error: $1" >&2
  exit 2
}
versions=("$@")
[ $# -gt 0 ] || versions=(13 14)
for version in "${versions[@]}"; do
  [[ $version =~ ^1[2-4]$ ]] || refuse "'$version' is not a version of g++ that Debian 13 has; expected 12, 13 or 14"
done
[ "$(id -u)" -eq 0 ] || refuse "debootstrap and chroot need root; run this as root"
[ -d .venv ] || refuse ".venv, which holds libtorch's headers, is missing; run scripts/setup.sh --setup-only first"

base=${FRESH:-$(mktemp -d)}
mkdir -p "$base"
system=$base/compilers
clean_up() {
  for mount in checkout venv proc dev; do umount -l "$system/$mount" 2>/dev/null || true; done
  [ -n "${FRESH-}" ] || grep -q " $base/" /proc/mounts || rm -rf --one-file-system "$base"
}
trap clean_up EXIT
if [ ! -f "$system.made" ]; then
  command -v debootstrap >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends debootstrap; }
  rm -rf --one-file-system "$system"
  debootstrap --variant=minbase trixie "$system" "$(debian_mirror)" >"$system.log" 2>&1 || { tail -n 5 "$system.log" >&2; exit 1; }
  cp -a /etc/apt/apt.conf.d/99* "$system/etc/apt/apt.conf.d/" 2>/dev/null || true
  touch "$system.made"
fi
mkdir -p "$system/checkout" "$system/venv"
cp /etc/resolv.conf /etc/hosts "$system/etc/"
# Read-only, so that neither a build inside nor the rm above can change them.
mount --bind "$PWD" "$system/checkout"
mount -o remount,bind,ro "$system/checkout"
mount --bind "$(realpath .venv)" "$system/venv"
mount -o remount,bind,ro "$system/venv"
mount -t proc proc "$system/proc"
mount --bind /dev "$system/dev"
inside() {
  chroot "$system" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive "$@"
}
inside apt-get install -y -q --no-install-recommends "${packages[@]}" "${versions[@]/#/g++-}" >"$system.packages.log" 2>&1 ||
  { tail -n 20 "$system.packages.log" >&2; exit 1; }

status=0
# Debian 13's libraries were built with g++ 14 and need symbols that g++ 13 lacks. The programs are never run, so
# unresolved symbols are ignored.
linking=-Wl,--unresolved-symbols=ignore-all
for version in "${versions[@]}"; do
  echo "== g++ $version"
  inside cmake -S /checkout -B "/build/g++-$version" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON \
    -DCMAKE_UNITY_BUILD_BATCH_SIZE=10 "-DCMAKE_CXX_COMPILER=g++-$version" "-DCMAKE_C_COMPILER=gcc-$version" \
    -DISTHMUS_PYTHON_ENV=/venv -DISTHMUS_PYTHON=off -DISTHMUS_CUDA=off \
    "-DCMAKE_EXE_LINKER_FLAGS=$linking" "-DCMAKE_SHARED_LINKER_FLAGS=$linking" "-DCMAKE_MODULE_LINKER_FLAGS=$linking" >/dev/null
  inside cmake --build "/build/g++-$version" --parallel "$(nproc)" -- --quiet -k 0 || status=1
done
[ $status -eq 0 ]

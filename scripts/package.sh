#!/usr/bin/env bash
# scripts/package.sh, run on Debian 12, makes the wheels in dist/: isthmus-VERSION-cp311-... and -cp312-abi3-..., for
# manylinux_2_36_x86_64. They hold the programs, the trainer and the binding, with the libraries that these need except
# libtorch, and the licences of everything bundled. A file in dist/ gets its name only when it is complete.
set -euo pipefail
shopt -s inherit_errexit
[ $# -eq 0 ] || { echo "usage: scripts/package.sh (no arguments)" >&2 && exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=packaging/debian.sh
source packaging/debian.sh

platform=manylinux_2_36_x86_64
newer_suite=trixie newer_python=3.13 # its headers support the stable ABI of 3.12
work=$PWD/build/package
python=$PWD/.venv/bin/python

# Prints the include folders of a newer Python's headers: those of Debian 12 do not support the stable ABI of 3.12.
abi3_headers() {
  local got=$work/headers.got
  if [ ! -d "$work/headers/usr/include/python$newer_python" ]; then
    rm -rf "$got" "$work/headers" "$work/headers.tmp"
    mkdir -p "$got"
    (cd "$got" && private_apt "$got/apt" "deb $newer_suite main" download "libpython$newer_python-dev") >&2
    dpkg -x "$got"/libpython*.deb "$work/headers.tmp"
    mv "$work/headers.tmp" "$work/headers"
  fi
  echo "$work/headers/usr/include/python$newer_python;$work/headers/usr/include"
}

# add_licences WHEEL: adds the licences of the code compiled in and of the libraries that auditwheel has added.
add_licences() {
  local wheel=$1 tree=$work/unpacked libraries
  rm -rf "$tree"
  "$python" -m wheel unpack --dest "$tree" "$wheel"
  # auditwheel puts a checksum before .so in the libraries' names.
  mapfile -t libraries < <(find "$tree"/*/isthmus.libs -name '*.so*' -printf '/usr/lib/x86_64-linux-gnu/%f\n' | sed -E 's/-[0-9a-f]{8}\.so/.so/')
  [ ${#libraries[@]} -gt 0 ] || { echo "error: auditwheel has put no libraries into $wheel; expected isthmus.libs/*.so*" >&2 && exit 1; }
  packaging/third_party.sh "$(echo "$tree"/*/*.dist-info)/licenses/third-party" build/release \
    "isthmus isthmus-coordinator isthmus_trainer_library isthmus_python isthmus_python_abi3" "${libraries[@]}"
  rm "$wheel"
  "$python" -m wheel pack --dest-dir "${wheel%/*}" "$tree"/*
}

# make_wheel TAG BINDING: makes one wheel from the parts; auditwheel checks it and adds the libraries.
make_wheel() {
  local tag=$1 binding=$2 stage=$work/stage info
  rm -rf "$stage" "$work/raw" "$work/done"
  mkdir -p "$stage/isthmus/lib" "$work/raw" "$work/done"
  cp python/isthmus/*.py python/isthmus/py.typed "$binding" "$stage/isthmus/"
  cp -r build/release/python/isthmus/_native "$stage/isthmus/"
  cp -r "$work/tree/bin" "$work/tree/share" "$stage/isthmus/"
  cp "$work/tree/lib/libisthmus_trainer.so" "$stage/isthmus/lib/"
  # The quickstart trains on torch's include folder, which is in the same site-packages as this package.
  sed -i 's|  path: .*|  path: ../../../../torch/include # the headers of the torch next to this package|' \
    "$stage/isthmus/share/isthmus/configs/quickstart.yaml"
  grep -q 'torch/include' "$stage/isthmus/share/isthmus/configs/quickstart.yaml"
  (cd python && "$python" -c "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as make
make(sys.argv[1])" "$stage")
  info=("$stage"/isthmus-*.dist-info)
  printf 'Wheel-Version: 1.0\nGenerator: scripts/package.sh\nRoot-Is-Purelib: false\nTag: %s-linux_x86_64\n' "$tag" \
    >"${info[0]}/WHEEL"
  "$python" -m wheel pack --dest-dir "$work/raw" "$stage"
  PATH=$PWD/.venv/bin:$PATH "$python" -m auditwheel repair --strip --plat "$platform" --only-plat -w "$work/done" \
    --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libgomp*' --exclude 'libcudart*' --exclude 'libnccl*' \
    "$work"/raw/*.whl
  add_licences "$work"/done/*.whl
  mkdir -p dist
  for wheel in "$work"/done/*.whl; do
    cp "$wheel" "dist/.${wheel##*/}.tmp"
    mv "dist/.${wheel##*/}.tmp" "dist/${wheel##*/}"
    echo "dist/${wheel##*/}"
  done
}

wheel() {
  local headers
  scripts/setup.sh --package release
  headers=$(abi3_headers)
  # Takes setup.sh's locks, so that no other process configures, builds or installs from here on.
  exec 7>>"$(realpath .venv).lock" 9>>build/setup.lock
  flock --shared 7
  flock 9
  cmake -S . -B build/release -DISTHMUS_PYTHON=on "-DISTHMUS_ABI3_HEADERS=$headers"
  cmake --build build/release --target isthmus isthmus-coordinator isthmus_python isthmus_python_stub isthmus_python_abi3
  rm -rf "$work/tree"
  cmake --install build/release --component programs --prefix "$work/tree"
  make_wheel "cp311-cp311" "$(echo build/release/python/isthmus/_native.cpython-311*.so)"
  make_wheel "cp312-abi3" build/release/python-abi3/_native.abi3.so
}

mkdir -p "$work"
exec 8>"$work/lock" # not setup.sh's lock: this script runs setup.sh
flock -n 8 || { echo "waiting for another package.sh, which holds $work/lock" >&2 && flock 8; }
wheel
echo "their trainer is built for: $(build/release/isthmus --version | sed -n "s/^CUDA *//p")"

#!/usr/bin/env bash
# From a bare machine to a built tree:
#
#     scripts/setup.sh [--tests] [--package] [--setup-only] [PRESET ...]        (PRESET: release, debug, asan, tsan, fuzz)
#     scripts/setup.sh --static
#
# installs what is missing of the Debian packages, makes .venv/ with the pinned libtorch, configures and builds the
# presets (release where none is named). --setup-only stops before the build; --tests adds what the checks need and
# builds the tests, half of the whole, which the programs alone do without. --package adds what makes wheels.
# --static installs the Debian packages of packaging/static_coordinator.sh, and nothing else.
# What is there already is left alone, so running it again costs a moment and needs no network; after a failure it
# continues where it can and starts over where it must. What it installs is listed in scripts/pinned.sh.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
logs=$root/build/logs
downloads=$root/build/downloads # on their way into .venv
# shellcheck source=scripts/pinned.sh
source "$root/scripts/pinned.sh"

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $1"
  shift
  [ $# -eq 0 ] || say "$@"
  exit 1
}

# step LOG WHAT HINT COMMAND...: one line for a step that may take long; its output goes to a log. If it fails, the end of
# the output is shown, with the reason where that can be told, and HINT. (The end does not come from the log, since a full
# disk holds none.)
step() {
  local log=$logs/$1.log what=$2 hint=$3 start=$SECONDS end
  shift 3
  printf '%s ... ' "$what" >&2
  if end=$("$@" 2>&1 </dev/null | { tee "$log" 2>/dev/null || true; } | tail -n 200); then
    say "done ($((SECONDS - start)) s)"
    return
  fi
  say "FAILED ($((SECONDS - start)) s)"
  tail -n 30 <<<"$end" | cut -c 1-300 >&2
  rm -rf "$downloads"
  say "error: this step failed: $what"
  reason "$end" >&2
  say "$hint" "(The whole log: $log)"
  exit 1
}

# reason OUTPUT: a line on what most failures of a step are due to.
reason() {
  local line network='connection(error| refused| reset| broken| failed| timed out)|timed out|incompleteread'
  network+='|could not (resolve|connect)|temporary failure|failed to fetch'
  if grep -qiE 'no space left on device|disk quota exceeded' <<<"$1"; then
    echo "A disk is full. Free now: $(df -h --output=avail,target "$root" /var /tmp | tail -n +2 |
      awk '!seen[$2]++ {printf "%s%s on %s", (NR > 1 ? ", " : ""), $1, $2}')."
  elif grep -qE 'Killed signal terminated program|virtual memory exhausted|Cannot allocate memory' <<<"$1"; then
    echo "Memory was full. Free now: $(awk '$1 == "MemAvailable:" {printf "%.1f GB", $2 / 1e6}' /proc/meminfo)."
  elif grep -qi 'do not match the hashes' <<<"$1"; then
    echo "A file arrived with another checksum than its index gives. Usually the connection broke off; if it happens again, ask who runs the index or the proxy."
  elif line=$(grep -m 1 -iE "$network" <<<"$1"); then
    echo "The network or the server failed, or broke off: $(cut -c 1-200 <<<"$line")"
  elif grep -qF '(from versions: none)' <<<"$1"; then
    echo "The package index could not be reached, or does not have that package$(grep -m 1 -oE ': https?://[^ ]+' <<<"$1")."
  fi
}

# check_writable PATH...: of those that exist.
check_writable() {
  local path
  for path in "$@"; do
    [ ! -e "$path" ] || [ -w "$path" ] ||
      die "$path cannot be written by user $(id -un); it belongs to $(stat -c %U "$path")." \
        "Run this as that user, or give it to this one (chown -R), or check whether its file system is read-only."
  done
}

# lock FILE: waits until no other setup.sh holds it; gives up the one held before.
lock() {
  exec 9>>"$1"
  flock -n 9 || { say "waiting for another setup.sh, process $(tail -n 1 "$1"), which holds $1" && flock 9; }
  echo $$ >"$1"
}

missing_packages() {
  local there
  there=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qx "$package installed" <<<"$there" || echo "$package"
  done
}

apt_install() {
  local as_root=(env DEBIAN_FRONTEND=noninteractive) get
  [ "$(id -u)" -eq 0 ] || as_root=(sudo "${as_root[@]}")
  get=("${as_root[@]}" apt-get -y -q -o DPkg::Lock::Timeout=300)
  # What an install that was cut off has unpacked has to be configured before apt-get does anything else.
  "${as_root[@]}" dpkg --configure -a || true
  # The package lists of a new machine are empty and those of an old one outdated; others need no update.
  "${get[@]}" install --fix-broken --no-install-recommends "$@" ||
    { "${get[@]}" update && "${get[@]}" install --fix-broken --no-install-recommends "$@"; }
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "There is no dpkg here, so this is not Debian; going on as if the counterparts of these were installed: $*"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    die "${#missing[@]} Debian packages are missing, user $(id -un) is not root, and there is no sudo. Run as root:" \
      "apt-get update && apt-get install --no-install-recommends ${missing[*]}"
  fi
  step packages "installing ${#missing[@]} Debian packages" \
    "Check the network and apt's sources, or install them by hand, as root, then run this again: apt-get install --no-install-recommends ${missing[*]}" \
    apt_install "${missing[@]}"
}

# at_least WANTED HAVE: version numbers, dotted.
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

check_tools() {
  local tool cmake gcc
  for tool in cmake g++ ninja; do
    command -v $tool >/dev/null || die "there is no $tool on PATH ($PATH)." "Install it, then run this again."
  done
  cmake=$(cmake --version | grep -oE -m 1 '[0-9]+(\.[0-9]+)+')
  gcc=$(g++ -dumpfullversion)
  at_least 3.25 "$cmake" || die "$(command -v cmake) is version $cmake; 3.25 or newer is needed. Debian 12 has it."
  at_least 12 "$gcc" || die "$(command -v g++) is version $gcc; 12 or newer is needed. Debian 12 has it."
}

# Prints the first nvcc of the right CUDA, in the order in which cmake/Cuda.cmake looks.
find_nvcc() {
  local nvcc candidates
  mapfile -t candidates < <(type -ap nvcc)
  for nvcc in /usr/local/cuda/bin/nvcc "${candidates[@]}"; do
    if [ -x "$nvcc" ] && "$nvcc" --version 2>/dev/null | grep -q "release $cuda_major\."; then
      echo "$nvcc"
      return
    fi
  done
}

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

has_torch() { [[ " ${pythons[*]} " == *" $1 "* ]]; }

# Sets `python` to one that torch has wheels for: the system's if possible, as others on PATH may go away.
find_python() {
  local candidates version seen=""
  mapfile -t candidates < <(type -ap python3)
  for python in /usr/bin/python3 "${candidates[@]}"; do
    version=$(python_version "$python") || continue
    ! has_torch "$version" || return 0
    seen+="${seen:+, }$python is $version"
  done
  die "$torch has wheels for Python ${pythons[*]}; here ${seen:-there is no python3}." \
    "Install one of those, put it on PATH as python3, and run this again."
}

# Not by venv alone, which hides why pip could not be installed.
new_venv() { "$1" -m venv --without-pip "$venv" && "$venv/bin/python" -m ensurepip --default-pip; }

# Makes .venv; again if an install into it was cut off, or if its Python is gone or another version than it was.
make_venv() {
  local version python
  if [ -e "$venv" ]; then
    version=$(python_version "$venv/bin/python") || version=none
    [ -e "$venv/isthmus-unfinished" ] || ! has_torch "$version" || [ ! -d "$venv/lib/python$version" ] || return 0
    say "making .venv anew: $([ -e "$venv/isthmus-unfinished" ] && echo "an install into it did not finish" ||
      echo "its Python (now $version) is not the one it was made with")"
  fi
  find_python
  rm -rf "$venv"
  mkdir "$venv"
  touch "$venv/isthmus-unfinished"
  step venv "making .venv with $python" "Mend what the log names and run this again." new_venv "$python"
  rm "$venv/isthmus-unfinished"
}

pip() { TMPDIR=$downloads "$venv/bin/python" -m pip "$@"; }

# install_python NAME DISK ARGUMENT...: brings what pip's ARGUMENTs name into .venv, once: .venv/isthmus-NAME holds them
# when all is there. Everything is downloaded first, so a connection that breaks leaves .venv as it was. An install that
# is cut off leaves isthmus-unfinished behind, whatever pip takes for installed, and make_venv starts over.
install_python() {
  local name=$1 mark=$venv/isthmus-$1 hint="Mend that and run this again. It needs the network and $2 of disk."
  local options=(--no-input --disable-pip-version-check --progress-bar off)
  shift 2
  [ "$(cat "$mark" 2>/dev/null)" != "$*" ] || return 0
  rm -rf "$downloads"
  mkdir -p "$downloads"
  step "$name-download" "downloading $*" "$hint" pip download "${options[@]}" --only-binary :all: -d "$downloads" "$@"
  touch "$venv/isthmus-unfinished"
  rm -f "$mark"
  step "$name" "installing it into .venv" "$hint" \
    pip install "${options[@]}" --no-index --find-links "$downloads" "$@"
  rm -rf "$downloads"
  echo "$*" >"$mark"
  rm "$venv/isthmus-unfinished"
}

install_torch() {
  # Tests of the binding import torch, which does not load without all of CUDA's libraries, GPU or not.
  if [ -n "$nvcc" ] || [ $tests = yes ] || [ -e "$venv/isthmus-torch" ]; then
    install_python torch "12 GB" "$torch"
  else
    install_python torch_cpu "3 GB" --no-deps "${torch_cpu[@]}"
  fi
  local include=("$venv"/lib/python3*/site-packages/torch/include)
  ln -sfn "${include[0]#"$venv"/}" "$venv/corpus" # C++ text to train on in the quickstart
  # g++ skips a #pragma once header that equals one already read in contents, size and second of modification, so pip's
  # dates would change the text that ccache compares. One date for all, which moves with each install, as ninja compares
  # it too. The headers of another user's .venv stay as they are.
  local mark=$venv/isthmus-torch
  [ -e "$mark" ] || mark=$venv/isthmus-torch_cpu
  find "${include[0]}" -name "*.h" -exec touch -r "$mark" {} + 2>/dev/null || true
}

# parallel_jobs PRESET. A translation unit with libtorch takes about 2 GB, so memory can be what limits the number of jobs.
# The sanitizer trees get twice as many as there are processors: tests/run.sh builds them while tests run.
parallel_jobs() {
  local kib n most cgroup=/sys/fs/cgroup/memory.max
  most=$(nproc)
  [[ ! $1 =~ asan|tsan ]] || most=$((2 * most))
  kib=$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo)
  if [[ -r $cgroup && $(cat $cgroup) =~ ^[0-9]+$ ]] && (($(cat $cgroup) / 1024 < kib)); then
    kib=$(($(cat $cgroup) / 1024))
  fi
  n=$((kib / 2000000))
  ((n < most)) || n=$most
  echo $((n > 0 ? n : 1))
}

# Everything that CMake searches for outside the checkout, where the checkout is, and the presets: ninja notices changes
# of none.
found_by_cmake() {
  echo "$root"
  cksum <"$root/CMakePresets.json"
  echo "nvcc: $nvcc, for ${CUDAARCHS-}"
  printf '%s\n' "$venv"/lib/python3*/site-packages/*.dist-info
  dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n' "${packages[@]}" "${test_packages[@]}" 2>/dev/null | sort -u || true
}

build() {
  local preset=$1 dir=$root/build/$1 targets=() found jobs architectures
  found=$(found_by_cmake)
  if [ ! -f "$dir/build.ninja" ] || [ "$(cat "$dir/configured-with" 2>/dev/null)" != "$found" ]; then
    rm -f "$dir/configured-with"
    # --fresh forgets what a user has set; the GPUs to build for are worth keeping.
    architectures=$(sed -n 's/^CMAKE_CUDA_ARCHITECTURES:[A-Z]*=/-DCMAKE_CUDA_ARCHITECTURES=/p' "$dir/CMakeCache.txt" 2>/dev/null || true)
    step "configure-$preset" "configuring $preset" "Fix what the log names, or remove build/$preset, and run this again." \
      cmake --preset "$preset" --fresh ${architectures:+"$architectures"}
    echo "$found" >"$dir/configured-with"
  fi
  # The other presets have nothing but tests.
  [ $tests = yes ] || [[ ! $preset =~ release|debug ]] || targets=(--target app/all)
  [ "$preset" != fuzz ] || targets=(--target tests/fuzz/all)
  jobs=$(parallel_jobs "$preset")
  step "build-$preset" "building $preset ($jobs jobs)" "Mend what the log names and run this again: it continues from there." \
    cmake --build "$dir" --parallel "$jobs" "${targets[@]}"
}

cpu_only_box() {
  cat >&2 <<BOX
+--------------------------------------------------------------------------+
|  CPU-ONLY BUILD: no nvcc of CUDA $cuda_major in /usr/local/cuda/bin or on PATH.   |
|  Training will not use a GPU. On a machine with one, install the CUDA $cuda_major |
|  toolkit and run this again.                                             |
+--------------------------------------------------------------------------+
BOX
}

tests=no package=no static=no build=yes presets=()
for argument in "$@"; do
  case $argument in
    --tests) tests=yes ;;
    --package) package=yes ;;
    --static) static=yes ;;
    --setup-only) build=no ;;
    release | debug | asan | tsan | fuzz) presets+=("$argument") ;;
    *) die "unknown argument: $argument" "usage: scripts/setup.sh [--tests] [--package] [--setup-only] [release|debug|asan|tsan|fuzz ...] | --static" ;;
  esac
done
[ ${#presets[@]} -gt 0 ] || presets=(release)
[ $tests = no ] || packages+=("${test_packages[@]}")
[[ ! " ${presets[*]} " =~ " fuzz " ]] || packages+=("${fuzz_packages[@]}")
[ $package = no ] || packages+=("${package_packages[@]}")
[ $static = no ] || packages+=("${static_packages[@]}")

cd "$root"
real_venv=$(realpath -m "$venv") # a link in a checkout that shares it with another
check_writable "$root" "$root/build" "$logs" "$root/build/setup.lock" "$real_venv" "$real_venv.lock" "$(dirname "$real_venv")"
mkdir -p "$logs"
lock "$real_venv.lock"
install_packages "${packages[@]}"
check_tools
[ $static = no ] || exit 0
nvcc=$(find_nvcc)
make_venv
install_torch
if [ $tests = yes ]; then
  install_python tests "2 GB" "${test_python[@]}"
  install_python binding "500 MB" --no-deps "${binding[@]}"
fi
[ $package = no ] || install_python packaging "100 MB" --no-deps "${packaging[@]}"
[ $build = yes ] || exit 0
lock "$root/build/setup.lock"
for preset in "${presets[@]}"; do
  build "$preset"
done
# The sanitizer builds leave CUDA out anyway.
[ -n "$nvcc" ] || [[ ! ${presets[*]} =~ release|debug ]] || cpu_only_box

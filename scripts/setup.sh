#!/usr/bin/env bash
# From a bare machine to a built tree:
#
#     scripts/setup.sh [--tests] [--package] [--setup-only] [PRESET ...]        (PRESET: release, debug, asan, tsan, fuzz)
#     scripts/setup.sh --static
#
# installs missing Debian packages, makes .venv/ with the pinned libtorch, then configures and builds the presets
# (default: release). The presets asan, tsan and fuzz have no libtorch: for them alone, it makes no .venv. --setup-only
# stops before the build. --tests also installs the packages that the tests need, and builds the tests, which doubles
# the build. --package installs the packages that make wheels. --static installs only
# the Debian packages of packaging/static_coordinator.sh. scripts/pinned.sh lists all packages. A second run skips
# everything that is already done, so it takes a moment and no network; after a failure it continues, or starts over
# where it must.
set -euo pipefail

export LC_ALL=C.UTF-8 # `reason` searches the output for English words
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
real_venv=$(realpath -m "$venv") # .venv is a link if checkouts share one
logs=$root/build/logs
downloads=$root/build/downloads # packages to install into .venv
# shellcheck source=scripts/pinned.sh
source "$root/scripts/pinned.sh"

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $1"
  shift
  [ $# -eq 0 ] || say "$@"
  exit 1
}

# step LOG WHAT HINT COMMAND...: runs a long step, prints one line about it, and writes its output to a log. If it
# fails, prints the end of the output, the reason if `reason` recognises it, and HINT. (The end of the output is not
# read from the log, which is empty if the disk is full.)
step() {
  local log=$logs/$1.log what=$2 hint=$3 start=$SECONDS end
  shift 3
  printf '%s ... ' "$what" >&2
  if end=$("$@" 2>&1 </dev/null | { tee "$log" 2>/dev/null || true; } | tail -n 200 | tail -c 60000); then
    say "done ($((SECONDS - start)) s)"
    return
  fi
  say "FAILED ($((SECONDS - start)) s)"
  tail -n 30 <<<"$end" | cut -c 1-300 >&2
  say "error: this step failed: $what"
  reason "$end" >&2
  say "$hint" "(The complete log: $log)"
  exit 1
}

# reason OUTPUT: prints one line about the cause, if OUTPUT shows one of the common causes.
reason() {
  local line network='connection(error| refused| reset| broken| failed| timed out)|timed out|incompleteread'
  network+='|could not (resolve|connect)|temporary failure|failed to fetch'
  if grep -qiE 'no space left on device|disk quota exceeded' <<<"$1"; then
    echo "A disk is full. Free now: $(df -h --output=avail,target "$root" "${HOME:-/}" /var /tmp | tail -n +2 |
      awk '!seen[$2]++ {printf "%s%s on %s", (NR > 1 ? ", " : ""), $1, $2}')."
  elif grep -qE 'Killed signal terminated program|virtual memory exhausted|Cannot allocate memory' <<<"$1"; then
    echo "Memory was full. Free now: $(awk '$1 == "MemAvailable:" {printf "%.1f GB", $2 / 1e6}' /proc/meminfo)."
  elif grep -qE 'Could not get lock|is another process using it' <<<"$1"; then
    echo "Another program is installing Debian packages, as a new machine does after its first start. Wait until it has finished."
  elif grep -qiE 'permission denied|operation not permitted' <<<"$1"; then
    echo "A file here belongs to another user than $(id -un), perhaps after a run with sudo: give the checkout and .venv to one user (chown -R)."
  elif grep -qi 'do not match the hashes' <<<"$1"; then
    echo "A file arrived with another checksum than its index gives. Usually the connection broke; if it happens again, ask the operator of the index or proxy."
  elif line=$(grep -m 1 -iE "$network" <<<"$1"); then
    echo "The network or the server failed, or the connection broke: $(cut -c 1-200 <<<"$line")"
  elif grep -qF '(from versions: none)' <<<"$1"; then
    echo "The package index could not be reached, or does not have this package$(grep -m 1 -oE ': https?://[^ ]+' <<<"$1")."
  fi
}

# check_writable PATH...: ends the script if a PATH exists and is not writable.
check_writable() {
  local path
  for path in "$@"; do
    [ ! -e "$path" ] || [ -w "$path" ] ||
      die "$path cannot be written by user $(id -un); it belongs to $(stat -c %U "$path")." \
        "Run this as that user, or give it to this one (chown -R), or check whether its file system is read-only."
  done
}

# lock HOW DESCRIPTOR FILE: locks FILE, which is open as DESCRIPTOR, or changes the kind of a lock already held. HOW is
# --exclusive or --shared.
lock() {
  flock --nonblock "$1" "$2" ||
    { say "waiting for another setup.sh, process $(tail -n 1 "$3"), which holds $3" && flock "$1" "$2"; }
  echo $$ >"$3"
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
  # After an interrupted install, unpacked packages must be configured before apt-get does anything else.
  "${as_root[@]}" dpkg --configure -a || true
  # Updates the package lists only if the install fails: they may be empty (a new machine) or outdated.
  "${get[@]}" install --fix-broken --no-install-recommends "$@" ||
    { update_lists "${get[@]}" && "${get[@]}" install --fix-broken --no-install-recommends "$@"; }
}

# update_lists APT_GET...: retries the update while another process holds the lists' lock, as on a machine's first
# start; DPkg::Lock::Timeout does not cover that lock.
update_lists() {
  local output
  for _ in {1..30}; do
    output=$("$@" update 2>&1) && echo "$output" && return
    echo "$output"
    grep -q 'Could not get lock' <<<"$output" || return 1
    sleep 10
  done
  return 1
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "There is no dpkg here, so this is not Debian; continuing as if the equivalents of these packages were installed: $*"
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
    "Check the network and apt's sources, or install them as root, then run this again: apt-get install --no-install-recommends ${missing[*]}" \
    apt_install "${missing[@]}"
}

# at_least WANTED HAVE: whether version HAVE is WANTED or newer; both are dotted numbers.
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

# Prints the first nvcc of the required CUDA version, searching in the same order as cmake/Cuda.cmake.
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

# Whether the presets to build, or --package, need .venv.
needs_venv() { [ $static = no ] && { [ $package = yes ] || [[ ${presets[*]} =~ release|debug ]]; }; }

has_torch() { [[ " ${pythons[*]} " == *" $1 "* ]]; }

# Sets `python` to a Python that torch has wheels for, preferably the system's, since others on PATH may be removed.
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

# new_venv PYTHON: replaces .venv by a new environment. It removes bin/ first: if the removal is interrupted, .venv has
# no Python, so the next run makes it anew. It runs ensurepip itself, since venv hides why pip could not be installed.
new_venv() {
  rm -rf "${real_venv:?}/bin" && rm -rf "$real_venv" && mkdir "$real_venv" && touch "$real_venv/isthmus-unfinished" &&
    "$1" -m venv --without-pip "$real_venv" && "$real_venv/bin/python" -m ensurepip --default-pip
}

# Whether the last install into .venv finished, and its Python exists and still has the same version.
venv_is_whole() {
  local version
  version=$(python_version "$venv/bin/python") && [ ! -e "$venv/isthmus-unfinished" ] && has_torch "$version" &&
    [ -d "$venv/lib/python$version" ]
}

make_venv() {
  local version python
  ! venv_is_whole || return 0
  if [ -e "$venv" ]; then
    version=$(python_version "$venv/bin/python") || version=none
    say "making .venv anew: $([ -e "$venv/isthmus-unfinished" ] && echo "an install into it did not finish" ||
      echo "its Python (now $version) is not the one it was made with")"
  fi
  find_python
  step venv "making .venv with $python" "Fix the problem named in the log and run this again." new_venv "$python"
  rm "$venv/isthmus-unfinished"
}

pip() { TMPDIR=$downloads "$venv/bin/python" -m pip "$@"; }

# is_installed NAME ARGUMENT...: whether install_python has installed this set into .venv.
is_installed() { [ "$(cat "$venv/isthmus-$1" 2>/dev/null)" = "${*:2}" ]; }

# install_python NAME DISK ARGUMENT...: installs the packages that pip's ARGUMENTs name into .venv, unless
# .venv/isthmus-NAME, written at the end, already holds the same ARGUMENTs. It downloads everything first, so a broken
# connection leaves .venv unchanged. An interrupted install leaves isthmus-unfinished behind, even if pip considers the
# packages installed, and make_venv then starts over.
install_python() {
  local name=$1 mark=$venv/isthmus-$1 hint="Fix that and run this again. It needs the network and $2 of disk."
  local options=(--no-input --disable-pip-version-check --progress-bar off)
  shift 2
  ! is_installed "$name" "$@" || return 0
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

# Prints a line for each set of packages that the build needs in .venv: install_python's NAME, DISK and ARGUMENTs,
# separated by |.
wanted_to_build() {
  # The tests need all of torch, so its smaller install first would be work for nothing; but where that is already there,
  # the build begins with it while all of torch is downloaded.
  if [ -n "$nvcc" ] || [ -e "$venv/isthmus-torch" ] || { [ $tests = yes ] && [ ! -e "$venv/isthmus-torch_cpu" ]; }; then
    echo "torch|12 GB|$torch"
  else
    echo "torch_cpu|3 GB|--no-deps ${torch_cpu[*]}"
  fi
  [ $tests = no ] || echo "binding|500 MB|--no-deps ${binding[*]}"
  [ $package = no ] || echo "packaging|100 MB|--no-deps ${packaging[*]}"
}

# The same for packages that running the tests needs. torch is one: the binding's tests import it, which loads only
# with all of CUDA's libraries, even without a GPU.
wanted_to_test() {
  [ $tests = yes ] || return 0
  echo "torch|12 GB|$torch"
  echo "tests|2 GB|${test_python[*]}"
  echo "site|200 MB|--no-deps ${site[*]} ${object_store[*]}"
}

prepare_headers() {
  local include=("$venv"/lib/python3*/site-packages/torch/include)
  ln -sfn "${include[0]#"$venv"/}" "$venv/corpus" # C++ text to train on in the quickstart
  # g++ skips a #pragma once header if one with the same contents, size and second of modification was already read. So
  # pip's dates would change the preprocessed text that ccache compares. Give all headers the date at which this torch
  # was installed, since ninja compares it too. The headers of another user's .venv stay unchanged.
  local installed=("$venv"/lib/python3*/site-packages/torch-*.dist-info/RECORD)
  find "${include[0]}" -name "*.h" -exec touch -r "${installed[0]}" {} + 2>/dev/null || true
}

# Whether everything is installed.
all_is_there() {
  local wanted name arguments
  ! command -v dpkg-query >/dev/null || [ -z "$(missing_packages "${packages[@]}")" ] || return 1
  needs_venv || return 0
  venv_is_whole && [ -e "$venv/corpus" ] || return 1
  mapfile -t wanted < <(wanted_to_build && wanted_to_test)
  for arguments in "${wanted[@]}"; do
    IFS='|' read -r name _ arguments <<<"$arguments"
    is_installed "$name" "$arguments" || return 1
  done
}

# install_sets LINE...: installs the sets of these lines of wanted_to_build and wanted_to_test.
install_sets() {
  local line name disk arguments
  for line in "$@"; do
    IFS='|' read -r name disk arguments <<<"$line"
    # shellcheck disable=SC2086 # words
    install_python "$name" "$disk" $arguments
  done
}

# missing_sets: prints the lines of its input with a set that is not installed.
missing_sets() {
  local line name arguments
  while IFS= read -r line; do
    IFS='|' read -r name _ arguments <<<"$line"
    is_installed "$name" "$arguments" || echo "$line"
  done
}

# Installs everything that is missing; packages that only the tests need, in the background if a build follows. Signals
# do not end that install, so that .venv stays whole; then it lets other checkouts use .venv, too.
install() {
  local wanted
  install_packages "${packages[@]}"
  check_tools
  needs_venv || return 0
  trap end_install EXIT
  make_venv
  mapfile -t wanted < <(wanted_to_build)
  install_sets "${wanted[@]}"
  prepare_headers
  mapfile -t wanted < <(wanted_to_test | missing_sets)
  if [ $build = yes ] && [ ${#wanted[@]} -gt 0 ]; then
    say "installing the packages that only the tests need in the background"
    # Through a pipe, since the disk may be full.
    exec 7< <(
      trap 'rm -rf "$downloads" && flock --shared 9' EXIT
      trap '' INT QUIT HUP TERM
      install_sets "${wanted[@]}" 2>&1
    )
    background=$!
  else
    install_sets "${wanted[@]}"
  fi
}

# end_install: waits for the install in the background and prints its output. Returns 1 if it failed. The end of the
# script calls it, too: an install is finished even if the build has failed or was interrupted.
end_install() {
  local status=0
  if [ -n "$background" ]; then
    ! kill -0 "$background" 2>/dev/null || say "waiting until the packages for the tests are installed"
    cat <&7 >&2
    wait "$background" || status=1
    background=
  else
    rm -rf "$downloads"
  fi
  return $status
}

# Ends the script if the install in the background has failed already.
check_install() { [ -z "$background" ] || kill -0 "$background" 2>/dev/null || end_install; }

# parallel_jobs PRESET: prints the number of build jobs. A translation unit with libtorch takes about 2 GB, so memory
# may be the limit. The sanitizer trees get two jobs per processor, since tests/run.sh builds asan while tests run.
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

# found_by_cmake PRESET: prints CMake's inputs that ninja does not watch: everything searched for outside the checkout,
# the path of the checkout, and the presets.
found_by_cmake() {
  local cache
  echo "$root"
  cksum <"$root/CMakePresets.json"
  echo "nvcc: $nvcc, for ${CUDAARCHS-}"
  if cache=$(ccache --get-config cache_dir 2>/dev/null); then
    echo "ccache: $cache$(mkdir -p "$cache/tmp" 2>/dev/null && [ -w "$cache/tmp" ] || echo ", cannot be written")"
  fi
  [[ ! $1 =~ release|debug ]] || printf '%s\n' "$venv"/lib/python3*/site-packages/{torch,nanobind}-*.dist-info
  dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n' "${packages[@]}" "${test_packages[@]}" 2>/dev/null | sort -u || true
}

build() {
  local preset=$1 dir=$root/build/$1 targets=() found jobs architectures
  found=$(found_by_cmake "$preset")
  if [ ! -f "$dir/build.ninja" ] || [ "$(cat "$dir/configured-with" 2>/dev/null)" != "$found" ]; then
    rm -f "$dir/configured-with"
    # --fresh drops all settings of the user; keep the GPU architectures to build for.
    architectures=$(sed -n 's/^CMAKE_CUDA_ARCHITECTURES:[A-Z]*=/-DCMAKE_CUDA_ARCHITECTURES=/p' "$dir/CMakeCache.txt" 2>/dev/null || true)
    step "configure-$preset" "configuring $preset" "Fix the problem named in the log, or remove build/$preset, and run this again." \
      cmake --preset "$preset" --fresh ${architectures:+"$architectures"}
    echo "$found" >"$dir/configured-with"
  fi
  check_install
  # The other presets build only tests.
  [ $tests = yes ] || [[ ! $preset =~ release|debug ]] || targets=(--target app/all)
  [ "$preset" != fuzz ] || targets=(--target tests/fuzz/all)
  jobs=$(parallel_jobs "$preset")
  step "build-$preset" "building $preset ($jobs jobs)" "Fix the problem named in the log and run this again: it continues from there." \
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

tests=no package=no static=no build=yes presets=() background=""
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
check_writable "$root" "$root/build" "$logs" "$logs"/*.log "${presets[@]/#/$root/build/}" "$root/build/setup.lock" \
  "$real_venv" "$real_venv.lock" "$(dirname "$real_venv")"
mkdir -p "$logs"
exec 9>>"$real_venv.lock" 8>>"$root/build/setup.lock"
nvcc=$(find_nvcc)
# Other checkouts that share .venv may build with it at the same time, but none may install into it meanwhile.
lock --shared 9 "$real_venv.lock"
if all_is_there; then
  check_tools
else
  lock --exclusive 9 "$real_venv.lock"
  install
  [ -n "$background" ] || lock --shared 9 "$real_venv.lock"
fi
[ $static = no ] && [ $build = yes ] || exit 0
lock --exclusive 8 "$root/build/setup.lock"
for preset in "${presets[@]}"; do
  build "$preset"
done
end_install
# The sanitizer builds never use CUDA.
[ -n "$nvcc" ] || [[ ! ${presets[*]} =~ release|debug ]] || cpu_only_box

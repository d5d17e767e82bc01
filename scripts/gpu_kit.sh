#!/usr/bin/env bash
# scripts/gpu_kit.sh [BUILD]: packs dist/gpu-kit.tar.xz, which has everything that a machine with a GPU, its driver and
# PyTorch 2.11 needs to check this build (default: build/release): programs, the Debian libraries that they load, and
# gpu_check.sh. On that machine:  tar -xf gpu-kit.tar.xz && gpu-kit/gpu_check.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build/release}
programs=(isthmus libisthmus_trainer.so tests/trainer/test_trainer tests/quant/test_quant_cuda tests/data/test_data bench/bench_step
  bench/bench_outer_device bench/bench_quant_cuda)

kit=$(mktemp -d)/gpu-kit
trap 'rm -rf "$(dirname "$kit")"' EXIT
mkdir -p "$kit/bin" "$kit/lib" "$root/dist"
for program in "${programs[@]}"; do
  if [ ! -x "$build/$program" ]; then
    echo "$build/$program is missing; build it with scripts/setup.sh --tests" >&2
    exit 1
  fi
  strip -o "$kit/bin/${program##*/}" "$build/$program"
done
# Leaves out libtorch's and CUDA's libraries, which the other machine's PyTorch has, and those of glibc and g++.
ldd "$kit"/bin/* | awk '$3 ~ /^\// {print $3}' | sort -u |
  grep -vE '/(torch|nvidia|cuda[^/]*)/|/lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|gomp)\.so' |
  while read -r library; do cp -L "$library" "$kit/lib/"; done
cp "$root/scripts/gpu_check.sh" "$root/tests/bench/compare_step.py" "$kit/"
git -C "$root" describe --always --dirty >"$kit/version" 2>/dev/null || echo unknown >"$kit/version"
tar -C "$(dirname "$kit")" -c gpu-kit | xz -T0 -4 >"$root/dist/gpu-kit.tar.xz"
du -h "$root/dist/gpu-kit.tar.xz"

#!/usr/bin/env bash
# gpu_check.sh [correct] [speed] [sanitize]: runs the checks that need a GPU on this machine's GPU, from an unpacked kit
# (scripts/gpu_kit.sh). It needs a driver and a python3 with PyTorch 2.11. The default is correct and speed; each part
# takes less than eight minutes. Prints a table, and puts the logs into one archive in $OUT (default: ./gpu-check).
# Status 0: all checks passed.
set -uo pipefail
kit=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-gpu-check}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
mkdir -p "$out" "$logs/results"
[ $# -gt 0 ] || set -- correct speed
if ! torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>"$logs/python.log"); then
  echo "python3 has no PyTorch; install version 2.11 (pip install torch==2.11.*), or activate an environment that has it" >&2
  exit 2
fi
if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "PyTorch finds no usable GPU; check that nvidia-smi lists one" >&2
  exit 2
fi
libraries=$kit/lib:$torch/lib:$(dirname "$torch")/nvidia/cu13/lib:/usr/local/cuda/lib64
# Only for our programs: Python must keep its own system's OpenSSL.
ours=(env "LD_LIBRARY_PATH=$libraries")

# check NAME SECONDS COMMAND...: runs COMMAND; fails on a status other than 0, a timeout or a skipped test.
check() {
  local name=$1 limit=$2 begin=$SECONDS result
  shift 2
  timeout -k 5 "$limit" "$@" >"$logs/$name.log" 2>&1
  result=$?
  [ $result != 124 ] || result="not finished after $limit s"
  ! grep -q '\[  SKIPPED \]' "$logs/$name.log" || result=skipped
  [ "$result" = 0 ] && result=ok || result="FAILED: $result"
  printf '%-24s %4d s  %s\n' "$name" $((SECONDS - begin)) "$result" | tee "$logs/results/$name"
}

# train NAME KEY=VALUE...: trains two replicas on the GPU.
train() {
  local name=$1
  shift
  check "$name" 200 "${ours[@]}" "$kit/bin/isthmus" launch "$logs/run.yaml" --set "run.name=$name" "${@/#/--set=}"
}

# same_hash RUN...: fails unless the runs' global parameters have one hash.
same_hash() {
  python3 - "$@" <<'PY'
import json, sys
hashes = [json.load(open(f"{path}/summary.json"))["global_hash"] for path in sys.argv[1:]]
hashes = {value for one in hashes for value in (one.values() if isinstance(one, dict) else [one])}
print(hashes)
sys.exit(len(hashes) != 1)
PY
}

quiet() {
  ! grep -h -i warn "$@" | head -n 3 | grep .
}
export -f same_hash quiet

correct() {
  cat >"$logs/run.yaml" <<YAML
run: {out: $logs/runs, steps: 60, eval_every: 20, sample_tokens: 16, trace_steps: 60}
replicas: 2
device: cuda
model: {layers: 4, dim: 256, heads: 4, architecture: gpt2}
data: {path: $torch/include/ATen, tokenizer: bytes, seq_len: 256}
inner: {batch: 16, lr: 1e-3, warmup_steps: 10, precision: bf16}
trainer: {deterministic: true}
outer: {num_fragments: 3, sync_every: 10, sync_delay: 2, codec: 4bit, error_feedback: true}
YAML
  check version 60 "${ours[@]}" "$kit/bin/isthmus" --version
  check codecs 200 "${ours[@]}" "$kit/bin/test_quant_cuda" --gtest_filter='CudaPassesTest/2.*:CudaStreamTest.*-*TakesUnaligned*' &
  check loader 100 "${ours[@]}" "$kit/bin/test_data" --gtest_filter='CudaDevice.*' &
  check model 200 "${ours[@]}" "$kit/bin/test_trainer" --gtest_filter='Cuda.*' &
  check selftest 200 "${ours[@]}" "$kit/bin/isthmus" selftest --gpus all &
  train first &
  train again &
  train data_parallel replicas=1 outer.method=data_parallel outer.error_feedback=false &
  train warmup outer.warmup_steps=10 model.architecture=llama trainer.deterministic=false &
  wait
  check same_bits 20 bash -c 'same_hash "$@"' _ "$logs/runs/first" "$logs/runs/again"
  check one_global_state 20 bash -c 'same_hash "$@"' _ "$logs/runs/warmup"
  check quiet 10 bash -c 'quiet "$@"' _ "$logs/first.log" "$logs/selftest.log" "$logs"/runs/first/*/worker.log
  check trace 30 "${ours[@]}" "$kit/bin/isthmus" trace "$logs/runs/first/replica-0/trace.json"
}

speed() {
  local gpt2=(--layers 12 --dim 768 --heads 12 --seq-len 1024 --model gpt2) case batch vocab
  local step=("${ours[@]}" "$kit/bin/bench_step" --device cuda --precision bf16 --steps 20 --rounds 3 --peak-tflops 989)
  for case in "16 50304" "64 50304" "16 50257"; do
    read -r batch vocab <<<"$case"
    check "step_gpt2_${batch}_$vocab" 60 "${step[@]}" "${gpt2[@]}" --vocab "$vocab" --batch "$batch"
  done
  check step_llama 60 "${step[@]}" --model llama --layers 24 --dim 1024 --heads 16 --vocab 32000 --batch 8 --seq-len 1024
  check nanogpt 300 python3 "$kit/compare_step.py" "$kit/bin/bench_step" --library-path "$libraries" --device cuda \
    --compile --precision bf16 --case gpt2-124m-gpu llama-350m-gpu --rounds 5
  check codec_speed 90 "${ours[@]}" "$kit/bin/bench_quant_cuda" --benchmark_min_time=0.05 \
    --benchmark_filter='^(4bit|int8|fp32)/.*thread_blocks:(16|1024)/manual_time$'
  check outer_device 60 "${ours[@]}" "$kit/bin/bench_outer_device" 124
  check outer_device_1b 90 "${ours[@]}" "$kit/bin/bench_outer_device" 1000 4bit 16
  for case in outer_device outer_device_1b step_gpt2_16_50304 step_gpt2_64_50304 step_gpt2_16_50257 step_llama nanogpt; do
    echo "== $case" && tail -n 2 "$logs/$case.log" | cut -c 1-600
  done
}

sanitize() {
  local tool
  for tool in memcheck racecheck initcheck synccheck; do
    check "$tool" 200 "${ours[@]}" PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$kit/bin/test_trainer" --gtest_filter='Cuda.LossAndGradient*:Cuda.TheOuterState*' &
  done
  wait
  check profile 200 "${ours[@]}" ncu --clock-control none --set basic --launch-skip 400 --launch-count 60 \
    -k 'regex:norm_rows|softmax_loss|gelu|sum_columns|update|encode_blocks' "$kit/bin/bench_step" --device cuda --model gpt2 \
    --layers 12 --dim 768 --heads 12 --vocab 50304 --batch 16 --seq-len 1024 --precision bf16 --steps 3 --rounds 1
}

printf 'build %s, %s\n' "$(cat "$kit/version")" "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1 | head -n 1)"
for part in "$@"; do
  case $part in
    correct | speed | sanitize) "$part" ;;
    *) echo "unknown part: $part; expected correct, speed or sanitize" >&2 && exit 2 ;;
  esac
done
tar -C "$logs" --exclude=checkpoints -czf "$out/logs.tar.gz" .
! grep -q FAILED "$logs"/results/*

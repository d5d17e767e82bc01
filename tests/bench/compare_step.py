#!/usr/bin/env python3
"""compare_step.py BENCH_STEP [--device cpu|cuda] [--case NAME ...] [--precision fp32|bf16 ...] [--compile] [--rounds N]
[--threads N] [--library-path DIRS]:
compares a training step of Isthmus with the same step in typical PyTorch code (in nanoGPT's form: modules, scaled dot
product attention, cross-entropy, clipping, AdamW with two groups, bf16 by autocast), eager and, with --compile, with
torch.compile. Model, batch, precision and threads are the same. All processes live as long as the comparison and run
their rounds alternately. Prints a line of JSON for each case: tokens per second (medians); the ratios, ours divided by
theirs, as medians over the rounds; and each process's peak memory beyond its use before the model was created, on the
host or, with --device cuda, on the GPU. --library-path is LD_LIBRARY_PATH for BENCH_STEP alone.

    .venv/bin/python tests/bench/compare_step.py build/release/bench/bench_step --compile
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

# Usual models on CPUs, from nanoGPT's smallest to GPT-2.
CASES = {
    "gpt2-tiny": {"model": "gpt2", "layers": 4, "dim": 128, "heads": 4, "vocab": 256, "batch": 12, "seq-len": 64},
    "gpt2-small": {"model": "gpt2", "layers": 6, "dim": 384, "heads": 6, "vocab": 256, "batch": 16, "seq-len": 256},
    "llama-small": {"model": "llama", "layers": 6, "dim": 384, "heads": 6, "vocab": 256, "batch": 16, "seq-len": 256},
    "gpt2-124m": {"model": "gpt2", "layers": 12, "dim": 768, "heads": 12, "vocab": 50304, "batch": 2, "seq-len": 512},
}
# Usual models on a GPU: nanoGPT's GPT-2, also with the original vocabulary, and a Llama with 350 M parameters.
GPU_CASES = {
    "gpt2-124m-gpu": {"model": "gpt2", "layers": 12, "dim": 768, "heads": 12, "vocab": 50304, "batch": 16, "seq-len": 1024},
    "gpt2-50257-gpu": {"model": "gpt2", "layers": 12, "dim": 768, "heads": 12, "vocab": 50257, "batch": 16, "seq-len": 1024},
    "llama-350m-gpu": {"model": "llama", "layers": 24, "dim": 1024, "heads": 16, "vocab": 32000, "batch": 8, "seq-len": 1024},
}


def model_of(case):
    import torch
    from torch import nn
    from torch.nn import functional

    width, heads, length = case["dim"], case["heads"], case["seq-len"]
    is_gpt2 = case["model"] == "gpt2"

    def linear(size_in, size_out):
        return nn.Linear(size_in, size_out, bias=is_gpt2)

    def norm():
        return nn.LayerNorm(width) if is_gpt2 else nn.RMSNorm(width, eps=1e-5)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = linear(width, 3 * width), linear(width, width)
            half = width // heads // 2
            angles = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(half) / half))
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)

        def rotate(self, x):
            if is_gpt2:
                return x
            a, b = x.float().chunk(2, -1)
            return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1).type_as(x)

        def forward(self, x):
            B, T, C = x.size()
            q, k, v = (part.view(B, T, heads, C // heads).transpose(1, 2) for part in self.qkv(x).split(C, dim=2))
            y = functional.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
            return self.out(y.transpose(1, 2).contiguous().view(B, T, C))

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            hidden = 4 * width if is_gpt2 else math.ceil(width * 8 / 3 / 64) * 64
            self.up, self.down = linear(width, hidden), linear(hidden, width)
            self.gate = None if is_gpt2 else linear(width, hidden)

        def forward(self, x):
            if self.gate is None:
                return self.down(functional.gelu(self.up(x), approximate="tanh"))
            return self.down(functional.silu(self.gate(x)) * self.up(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.attention, self.norm2, self.mlp = norm(), Attention(), norm(), FeedForward()

        def forward(self, x):
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(case["vocab"], width)
            self.positions = nn.Embedding(length, width) if is_gpt2 else None
            self.layers = nn.ModuleList(Layer() for _ in range(case["layers"]))
            self.norm = norm()
            self.head = nn.Linear(width, case["vocab"], bias=False)
            self.head.weight = self.tokens.weight
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, inputs, targets):
            x = self.tokens(inputs)
            if self.positions is not None:
                x = x + self.positions(torch.arange(inputs.size(1), device=inputs.device))
            for layer in self.layers:
                x = layer(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    return Decoder()


def status(name):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def serve(request):
    """The PyTorch process: runs a round of steps for each line on standard input."""
    import contextlib

    import torch

    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    case, device = request["case"], request["device"]
    on_gpu = device == "cuda"
    inputs = torch.randint(case["vocab"], (case["batch"], case["seq-len"])).to(device)
    targets = torch.randint(case["vocab"], (case["batch"], case["seq-len"])).to(device)
    before = status("VmRSS")
    model = model_of(case).to(device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, fused=on_gpu)
    bf16 = torch.autocast(device, dtype=torch.bfloat16) if request["precision"] == "bf16" else contextlib.nullcontext()
    forward = torch.compile(model) if request["compiled"] else model
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(request["steps"]):
            with bf16:
                loss = forward(inputs, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        tokens = request["steps"] * case["batch"] * case["seq-len"]
        parameters = sum(p.numel() for p in model.parameters())
        print(json.dumps({"tokens_per_second": tokens / seconds, "loss": loss.item(), "peak_bytes": status("VmHWM"),
                          "model_bytes": status("VmHWM") - before, "parameters": parameters,
                          "gpu_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0}), flush=True)


class Side:
    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=os.environ | (environment or {}))

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args[0]} ended with status {self.process.wait()}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(name, case, precision, options):
    request = {"case": case, "precision": precision, "threads": options.threads, "steps": 1, "compiled": False,
               "device": options.device}
    libraries = {"LD_LIBRARY_PATH": options.library_path} if options.library_path else {}
    ours = [options.bench_step, "--on-request", "--device", options.device, "--precision", precision,
            "--threads", str(options.threads)]
    for key, value in case.items():
        ours += [f"--{key}", str(value)]
    # As many steps per round as take about options.seconds.
    probe = Side(ours + ["--steps", "2"], libraries)
    tokens = case["batch"] * case["seq-len"]
    speed = [probe.round() for _ in range(3)][-1]["tokens_per_second"]
    probe.close()
    request["steps"] = max(1, round(options.seconds * speed / tokens))

    def theirs(compiled):
        return Side([sys.executable, __file__, "--serve", json.dumps(request | {"compiled": compiled})])

    sides = {"isthmus": Side(ours + ["--steps", str(request["steps"])], libraries), "eager": theirs(False)}
    if options.compile:
        sides["compiled"] = theirs(True)
    for side in sides.values():
        side.round()  # warm-up and compilation
    rounds = [{key: side.round() for key, side in sides.items()} for _ in range(options.rounds)]
    for side in sides.values():
        side.close()

    def median(value):
        return round(statistics.median(map(value, rounds)), 3)

    memory = "gpu_bytes" if options.device == "cuda" else "model_bytes"
    result = {"case": name, "device": options.device, "precision": precision, "threads": options.threads,
              "steps": request["steps"],
              "parameters": rounds[0]["isthmus"]["parameters"]}
    if result["parameters"] != rounds[0]["eager"]["parameters"]:
        sys.exit(f"{name}: {result['parameters']} parameters in Isthmus, {rounds[0]['eager']['parameters']} in PyTorch")
    for key in sides:
        result[key] = {"tokens_per_second": median(lambda r: r[key]["tokens_per_second"]),
                       "model_mb": round(rounds[-1][key][memory] / 1e6, 1),
                       "peak_mb": round(rounds[-1][key]["peak_bytes"] / 1e6, 1)}
        if key == "isthmus":
            continue
        result[f"of_{key}"] = median(lambda r: r["isthmus"]["tokens_per_second"] / r[key]["tokens_per_second"])
        result[f"memory_of_{key}"] = round(result["isthmus"]["model_mb"] / result[key]["model_mb"], 3)
    print(json.dumps(result), flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("bench_step", nargs="?")
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments.add_argument("--case", nargs="+", choices=[*CASES, *GPU_CASES], help="default: all cases of the device")
    arguments.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    arguments.add_argument("--library-path")
    arguments.add_argument("--compile", action="store_true", help="also measure torch.compile, which takes minutes")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--seconds", type=float, default=2, help="duration of one of our rounds")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--serve", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.serve:
        return serve(json.loads(options.serve))
    if not options.bench_step:
        arguments.error("the path of bench_step is missing")
    for name in options.case or (GPU_CASES if options.device == "cuda" else CASES):
        for precision in options.precision:
            compare(name, (CASES | GPU_CASES)[name], precision, options)


if __name__ == "__main__":
    main()

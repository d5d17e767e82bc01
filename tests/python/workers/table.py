"""Like table_worker.cpp, but with the binding: inner steps from a table."""

import argparse
import json
import math

import torch

import isthmus

options, rest = isthmus.worker_arguments()
parser = argparse.ArgumentParser()
parser.add_argument("--job", required=True)
with open(parser.parse_args(rest).job) as file:
    job = json.load(file)
values = torch.frombuffer(bytearray(open(job["values"], "rb").read()), dtype=torch.float32)
size = sum(job["fragments"][-1])


def part(row, shape, begin):
    return values[row * size + begin : row * size + begin + math.prod(shape)].view(shape)


model = torch.nn.Module()
for name, shape, begin in job["tensors"]:
    parts = name.split(".")
    owner = model
    for child in parts[:-1]:
        if not hasattr(owner, child):
            owner.add_module(child, torch.nn.Module())
        owner = getattr(owner, child)
    owner.register_parameter(parts[-1], torch.nn.Parameter(part(0, shape, begin).clone()))
loop = isthmus.OuterLoop(model=model, tokens=job["tokens"], **options)
assert [list(t) for t in loop.placement.tensors] == [[n, tuple(s), b] for n, s, b in job["tensors"]]
parameters = dict(model.named_parameters())
running = loop.running
while running:
    with torch.no_grad():
        for name, shape, begin in job["tensors"]:
            parameters[name] += part(loop.step + 1, shape, begin)
    running = loop.after_step()
loop.close()
print("hash", loop.global_hash, flush=True)

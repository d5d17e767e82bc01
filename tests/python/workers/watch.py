"""An observer like a user's. Saves (step, hash, values) of all parameters that it receives, the final ones last."""

import argparse

import buffers
import toy
import torch

import isthmus

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
parser.add_argument("--coordinator", required=True)
parser.add_argument("--name", required=True)
parser.add_argument("--certs")
parser.add_argument("--seen", default="seen.pt")
parser.add_argument("--width", type=int, default=24)
parser.add_argument("--newest", action="store_true", help="take the newest parameters and leave")
parser.add_argument("--buffers", nargs="*", default=[], help="patterns: follows the model of buffers.py")
options = parser.parse_args()

model = buffers.Model(0, torch.float32) if options.buffers else toy.Model(width=options.width)
with isthmus.Observer(
    options.config,
    model,
    name=options.name,
    coordinator=options.coordinator,
    certs=options.certs,
    buffers=options.buffers,
) as watch:
    seen = []

    def look(step):
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        values = {name: value.detach().clone() for name, value in tensors.items()}
        seen.append((step, watch.global_hash, values))

    if options.newest:
        assert watch.take_newest()
        look(None)
    else:
        for step in watch:
            look(step)
        look("end")
    torch.save(seen, options.seen)
    print("hash", watch.global_hash, flush=True)

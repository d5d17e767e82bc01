"""A worker like a user's. --record FILE saves the global parameters after each step; --trouble causes a failure."""

import argparse
import os
import signal
import sys
import time

import torch
import toy

import isthmus

options, rest = isthmus.worker_arguments()
parser = argparse.ArgumentParser()
parser.add_argument("--record")
parser.add_argument("--save", help="where to save a checkpoint at the end")
parser.add_argument("--load", help="checkpoint to resume from")
parser.add_argument("--trouble", default="")
parser.add_argument("--at", type=int, default=10, help="step of the failure")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--pace", type=float, default=0, help="minimum seconds per step")
parser.add_argument("--width", type=int, default=24)
parser.add_argument("--leave-on-sigterm", action="store_true")
more = parser.parse_args(rest)

model = toy.Model(width=more.width, dtype=torch.bfloat16 if more.bf16 else torch.float32)
optimizer = toy.optimizer_of(model)
if more.load:
    state = torch.load(more.load, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    options["resume"] = state["isthmus"]


def make_trouble():
    if more.trouble == "exception":
        raise ValueError("the user's own mistake")
    if more.trouble == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if more.trouble == "frozen":
        model.head.weight.requires_grad_(False)
    if more.trouble == "added":
        model.extra = torch.nn.Parameter(torch.zeros(3))
    if more.trouble == "moved":
        model.head.weight.data = model.head.weight.data.clone()
    if more.trouble == "not finite":
        model.head.weight.data.fill_(float("nan"))
    if more.trouble == "exit":
        sys.exit(0)
    if more.trouble == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)


recorded = []
loop = isthmus.OuterLoop(model=model, leave_on_sigterm=more.leave_on_sigterm, **options)
running = loop.running
while running:
    step = loop.step + 1
    if step == more.at:
        make_trouble()
    time.sleep(more.pace)
    loss = toy.loss_of(model, options["name"], step)
    loss.backward()
    isthmus.synchronous_step(loop, optimizer)
    optimizer.zero_grad()
    running = loop.after_step(loss.item())
    print("step", loop.step, flush=True)
    if more.record:
        recorded.append({k: v.clone() for k, v in loop.global_values().items()})
if more.record:
    torch.save(recorded, more.record)
if more.save:
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "isthmus": loop.state_dict()}
    torch.save(parts, more.save)
with loop.global_parameters():
    held_out = toy.loss_of(model, "held-out", 0)
loop.report_evaluation(held_out.item() * 8, 8)
loop.close()
print("hash", loop.global_hash, flush=True)

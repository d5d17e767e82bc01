"""A worker that gives its optimizer to the loop, alone or on two ranks of a site (--ranks ddp|fsdp).

Saves the moments with which it began, and those after each step, by parameter.
"""

import argparse
import os
import signal
import time

import torch
import torch.multiprocessing
import toy

import isthmus


class OwnNames(torch.optim.Optimizer):
    """Momentum under another name."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                velocity = self.state[parameter].setdefault("velocity", torch.zeros_like(parameter))
                velocity.mul_(0.9).add_(parameter.grad)
                parameter.sub_(group["lr"] * velocity)


def optimizers_of(kind, model):
    if kind == "muon":
        matrices = [p for p in model.parameters() if p.ndim == 2]
        vectors = [p for p in model.parameters() if p.ndim != 2]
        return [torch.optim.Muon(matrices, lr=1e-3), torch.optim.AdamW(vectors, lr=1e-3)], None
    if kind == "own":
        return OwnNames(model.parameters()), ("velocity", None)
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), None
    return toy.optimizer_of(model), None


def moments_of(model, optimizers):
    """Whole moments by parameter and name, and the optimizer's count of steps."""
    found = {}
    for name, parameter in model.named_parameters():
        for optimizer in optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                value = value.full_tensor() if hasattr(value, "full_tensor") else value
                found[f"{name.removeprefix('module.')} {key}"] = value.clone()
    return found


def train(rank, options, more):
    torch.set_num_threads(1)  # again after a fork, before other threads exist
    model, group = toy.Model(), None
    if more.ranks:
        torch.distributed.init_process_group("gloo", init_method=f"file://{more.store}", rank=rank, world_size=2)
        group = torch.distributed.group.WORLD
        if more.ranks == "fsdp":
            from shards import fully_shard

            for layer in model.layers:
                fully_shard(layer)
            fully_shard(model)
        else:
            model = torch.nn.parallel.DistributedDataParallel(model)
    given, keys = optimizers_of(more.optimizer, model)
    optimizers = given if isinstance(given, list) else [given]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loop = isthmus.OuterLoop(model=model, group=group, optimizer=given, moment_keys=keys, **options)
    if loop.step == 0:
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    recorded = [moments_of(model, optimizers)]
    running = loop.running
    while running:
        if loop.step + 1 == more.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
        toy.loss_of(model, options["name"], loop.step + 1).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        recorded.append(moments_of(model, optimizers))
        running = loop.after_step()
        if rank == 0:
            print("step", loop.step, flush=True)
    torch.save(recorded, f"{options['name']}.{rank}.moments")
    loop.close()
    if group is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    options, rest = isthmus.worker_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", default="adamw", choices=["adamw", "muon", "sgd", "own"])
    parser.add_argument("--ranks", choices=["ddp", "fsdp"])
    parser.add_argument("--store")
    parser.add_argument("--killed-at", type=int, default=0, help="step")
    more = parser.parse_args(rest)
    if more.ranks:
        # Uses fork, since spawned ranks would import torch again.
        torch.multiprocessing.start_processes(train, (options, more), nprocs=2, start_method="fork")
    else:
        train(0, options, more)

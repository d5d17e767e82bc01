"""A model with a buffer that grows by --growth in each training step, alone or on two ranks of a site (--ranks ddp|fsdp).

Only the ranks' first one adds it. Saves the global values and the model's own state at the end.
"""

import argparse

import torch
import torch.multiprocessing
import toy

import isthmus


class Model(toy.Model):
    def __init__(self, growth, dtype):
        super().__init__(dtype=dtype)
        self.growth = growth
        self.register_buffer("grown", torch.zeros(70))
        self.register_buffer("own", torch.zeros(3))  # not shared
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.grown += self.growth
            self.own += self.growth
            self.steps += 1
        return super().forward(x)


def train(rank, options, more):
    torch.set_num_threads(1)  # again after a fork, before other threads exist
    model, group = Model(more.growth if rank == 0 else 1000, getattr(torch, more.dtype)), None
    inner = model
    if more.ranks:
        torch.distributed.init_process_group("gloo", init_method=f"file://{more.store}", rank=rank, world_size=2)
        group = torch.distributed.group.WORLD
        if more.ranks == "fsdp":
            from shards import fully_shard

            fully_shard(model)
        else:
            model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = toy.optimizer_of(model)
    with isthmus.OuterLoop(model=model, group=group, buffers=["gro*"], **options) as loop:
        running = loop.running
        while running:
            toy.loss_of(model, options["name"], loop.step + 1).backward()
            isthmus.synchronous_step(loop, optimizer)
            optimizer.zero_grad()
            running = loop.after_step()
            if running and loop.step == 9:
                model.eval()
                before, shared = inner.grown.clone(), loop.global_values()["grown"]
                with loop.global_parameters(), torch.no_grad():
                    assert torch.equal(inner.grown, shared)
                    toy.loss_of(model, "held-out", 0)
                assert torch.equal(inner.grown, before)
                model.train()
        values = loop.global_values()
        assert torch.equal(inner.grown, values["grown"])
        assert rank or torch.equal(inner.own, torch.full((3,), more.growth * float(inner.steps)))
        if rank == 0:
            torch.save(values, f"{options['name']}.values")
    if group is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    options, rest = isthmus.worker_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--growth", type=float, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--ranks", choices=["ddp", "fsdp"])
    parser.add_argument("--store")
    more = parser.parse_args(rest)
    if more.ranks:
        # Uses fork, since spawned ranks would import torch again.
        torch.multiprocessing.start_processes(train, (options, more), nprocs=2, start_method="fork")
    else:
        train(0, options, more)

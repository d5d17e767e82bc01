"""A site with two ranks as one replica: DistributedDataParallel over Gloo. --fail-at makes the first rank raise."""

import argparse

import torch
import torch.multiprocessing
import toy

import isthmus


def train(rank, ranks, store, options, fail_at):
    torch.set_num_threads(1)  # again after a fork, before other threads exist
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    model = torch.nn.parallel.DistributedDataParallel(toy.Model())
    optimizer = toy.optimizer_of(model)
    with isthmus.OuterLoop(model=model, group=torch.distributed.group.WORLD, **options) as loop:
        running = loop.running
        while running:
            step = loop.step + 1
            if step == fail_at and rank == 0:
                model.module.head.weight.data.fill_(float("nan"))
            toy.loss_of(model, f"{options['name']}-{rank}", step).backward()
            isthmus.synchronous_step(loop, optimizer)
            optimizer.zero_grad()
            running = loop.after_step()
        values = loop.global_values()
    mine = torch.cat([value.view(-1) for value in values.values()])
    local = torch.cat([p.detach().view(-1) for p in model.parameters()])
    for tensor in (mine, local):
        first = tensor.clone()
        torch.distributed.broadcast(first, 0)
        assert torch.equal(first, tensor), f"rank {rank} has other parameters than rank 0"
    if rank == 0:
        print("hash", loop.global_hash, flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    options, rest = isthmus.worker_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--fail-at", type=int, default=0)
    more = parser.parse_args(rest)
    # Uses fork, since spawned ranks would import torch again.
    rank_arguments = (2, more.store, options, more.fail_at)
    torch.multiprocessing.start_processes(train, rank_arguments, nprocs=2, start_method="fork")

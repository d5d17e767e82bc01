"""Trains on the samples that the run's ledger gives, as a site of --ranks. Writes a step's samples to --samples."""

import argparse
import json
import os
import signal

import torch
import torch.multiprocessing
import toy

import isthmus


class Rows(torch.utils.data.Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(3)
        self.x, self.y = torch.randn(size, 5, generator=generator), torch.arange(size) % 3

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return i, self.x[i], self.y[i]


def train(rank, more, options):
    torch.set_num_threads(1)  # again after a fork, before other threads exist
    group = None
    if more.ranks > 1:
        store = f"file://{more.samples}.store"
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=more.ranks)
        group = torch.distributed.group.WORLD
    model = toy.Model()
    optimizer = toy.optimizer_of(model)
    options.pop("resume")
    if more.load:
        state = torch.load(more.load, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        options["resume"] = state["isthmus"]
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if group else model
    loop = isthmus.OuterLoop(model=wrapped, group=group, **options)
    data = Rows(more.size)
    sampler = isthmus.Batches(loop, len(data), more.batch)
    log = open(f"{more.samples}.{rank}", "a")
    running = loop.running
    for indices, x, y in torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=more.workers):
        torch.nn.functional.cross_entropy(wrapped(x), y).backward()
        isthmus.synchronous_step(loop, optimizer)
        optimizer.zero_grad()
        step = loop.step + 1
        print(json.dumps([step, indices.tolist()]), file=log, flush=True)
        if step == more.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        running = loop.after_step()
        if more.save and loop.wants_checkpoint and running:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "isthmus": loop.state_dict()}
            torch.save(parts, more.save)
        if not running:
            break
    loop.close()
    if rank == 0:
        print("hash", loop.global_hash, flush=True)
    if group is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    options, rest = isthmus.worker_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", required=True)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="processes of the data loader, which fetch ahead")
    parser.add_argument("--save", help="where to save the run's checkpoint")
    parser.add_argument("--load", help="checkpoint to resume from")
    parser.add_argument("--kill-at", type=int, default=-1)
    more = parser.parse_args(rest)
    if more.ranks == 1:
        train(0, more, options)
    else:
        torch.multiprocessing.start_processes(train, (more, options), nprocs=more.ranks, start_method="fork")

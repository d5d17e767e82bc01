"""A site with two ranks (--ranks) as one replica: fully_shard (FSDP2) over Gloo; each rank has its own batches.

--plain runs one process on the batches of two ranks, which must reach the same values.
"""

import argparse
import datetime

import toy
import torch
import torch.distributed.checkpoint
import torch.multiprocessing
from shards import fully_shard
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import isthmus


class Model(toy.Model):
    def save_pretrained(self, folder, state_dict=None):
        torch.save(state_dict or self.state_dict(), folder / "model.pt")


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def distributed(rank, more):
    timeout = datetime.timedelta(seconds=more.group_timeout)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{more.store}", rank=rank, world_size=more.ranks, timeout=timeout
    )
    shape = (2, more.ranks // 2) if more.replicated else (more.ranks,)
    mesh = torch.distributed.init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    model = Model()
    for layer in [] if more.root_alone else model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def loss_of(model, options, rank, step):
    if rank is not None:
        return toy.loss_of(model, f"{options['name']}-{rank}", step)
    return (loss_of(model, options, 0, step) + loss_of(model, options, 1, step)) / 2


def state_of(model, optimizer):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def load(model, optimizer, store):
    """Loads a checkpoint of `save`. Returns the loop's state."""
    state = state_of(model, optimizer)
    torch.distributed.checkpoint.load(state, checkpoint_id=f"{store}.checkpoint")
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return torch.load(f"{store}.loop", weights_only=True)


def save(loop, model, optimizer, store, rank):
    torch.distributed.checkpoint.save(state_of(model, optimizer), checkpoint_id=f"{store}.checkpoint")
    state = loop.state_dict()  # all ranks call it; the result of rank 0 is the site's state
    if rank in (0, None):
        torch.save(state, f"{store}.loop")


def train(rank, more, options):
    torch.set_num_threads(1)  # again after a fork, before other threads exist
    group = None
    if more.plain:
        model, rank = Model(), None
    else:
        model, group = distributed(rank, more), torch.distributed.group.WORLD
    optimizer = toy.optimizer_of(model)
    with torch.no_grad():  # leaves the parameters of the root gathered
        toy.loss_of(model, "held-out", 0)
    options["resume"] = load(model, optimizer, more.load) if more.load else None
    with isthmus.OuterLoop(model=model, group=group, **options) as loop:
        running = loop.running
        while running:
            step = loop.step + 1
            if step == more.fail_at and rank == 0:
                with torch.no_grad():
                    list(model.parameters())[0].mul_(float("nan"))
            loss_of(model, options, rank, step).backward()
            isthmus.synchronous_step(loop, optimizer)
            optimizer.zero_grad()
            running = loop.after_step()
            if running and loop.step in (2, 7, 14):  # also during a warm-up
                with torch.no_grad():  # leaves the parameters of the root gathered
                    loss_of(model, options, rank, step)
                with loop.global_parameters(), torch.no_grad():
                    loss_of(model, options, rank, step)
        if more.save:
            save(loop, model, optimizer, more.save, rank)
        values = loop.global_values()
        with loop.global_parameters():
            for name, parameter in model.named_parameters():
                assert torch.equal(whole(parameter.detach()), values[name]), name
            own = loop._storage.own_values()
            assert rank not in (0, None) or all(torch.equal(own[name], values[name]) for name in values)
        loop.save_pretrained(f"{more.values}.folder", replace=True)
        if rank in (0, None):
            found = torch.load(f"{more.values}.folder/model.pt", weights_only=True)
            assert found.keys() == values.keys() and all(torch.equal(found[name], values[name]) for name in values)
        assert loop.leaves or len(loop.global_hash) == 64  # on all ranks
        if rank in (0, None):
            print(f"left: {loop.leaves}" if loop.leaves else f"hash {loop.global_hash}", flush=True)
            torch.save(values, more.values)
    # PyTorch 2.7 may hang there: it joins the group's threads with the interpreter locked, while one of them may
    # still wait for that lock to free a tensor.
    if group is not None and tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8):
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    options, rest = isthmus.worker_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--values", required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--save", help="where to save a checkpoint at the end")
    parser.add_argument("--load", help="checkpoint to resume from")
    parser.add_argument("--fail-at", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--replicated", action="store_true", help="two groups of shards (HSDP)")
    parser.add_argument("--root-alone", action="store_true", help="do not shard each layer separately")
    parser.add_argument("--group-timeout", type=float, default=600, help="seconds")
    more = parser.parse_args(rest)
    if more.plain:
        train(0, more, options)
    else:
        # Uses fork, since spawned ranks would import torch again.
        torch.multiprocessing.start_processes(train, (more, options), nprocs=more.ranks, start_method="fork")

"""The GPT of nanogpt.py on a site of several ranks, with its parameters sharded by FSDP2: torchrun starts the ranks.

isthmus launch examples/python/fsdp2.yaml          # a coordinator and two sites of two ranks

Each site writes its checkpoints to runs/fsdp2/NAME, and the global parameters of the end to model.pt there.
`isthmus launch --resume runs/fsdp2` continues from the newest checkpoints.
"""

import argparse
import pathlib

import nanogpt
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import isthmus


def load(model, optimizer, folder):
    """Loads the newest checkpoint. Returns the loop's state."""
    newest = nanogpt.newest_checkpoint(folder)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    checkpoint.load(state, checkpoint_id=newest)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return torch.load(newest / "loop.pt", weights_only=True)


def save(model, optimizer, loop, folder):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    target = folder / f"checkpoint-{loop.step}"
    checkpoint.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=target)
    state = loop.state_dict()  # all ranks call it
    if loop.is_first:
        torch.save(state, target / "loop.pt")


def main():
    options, rest = isthmus.worker_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="runs/fsdp2", help="folder of checkpoints and models")
    folder = pathlib.Path(parser.parse_args(rest).output) / options["name"]
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)

    torch.manual_seed(1)  # all replicas start with the same parameters
    model = nanogpt.GPT().to(device)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    if options["resume"]:
        options["resume"] = load(model, optimizer, folder)
    with isthmus.OuterLoop(model=model, optimizer=optimizer, group=dist.group.WORLD, **options) as loop:
        text = nanogpt.read(loop.experiment.data_path)
        running = loop.running
        while running:
            ids, targets = (ids.to(device) for ids in nanogpt.batch_at(loop, text, rank))
            loss = nanogpt.loss_of(model, ids, targets)  # FSDP2 averages gradients over the ranks
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(loss.detach())
            running = loop.after_step(loss / ranks, tokens=ranks * ids.numel())
            if loop.wants_checkpoint:
                save(model, optimizer, loop, folder)
        values = loop.global_values()
        if loop.is_first:
            torch.save(values, folder / "model.pt")
            print(f"loss {loss.item() / ranks:.4f}, global hash {loop.global_hash}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

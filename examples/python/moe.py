"""A GPT with a mixture of experts in each layer. The ranks of a site divide the experts; torchrun starts the ranks.

isthmus launch examples/python/moe.yaml            # a coordinator and two sites of two ranks

Another site may divide the experts among more ranks, or have all in one process. The bias with which a router balances
its experts is a buffer, which the loop averages over the replicas. Each rank writes its checkpoints to runs/moe/NAME, and
the first one the global parameters of the end to model.pt there, with all experts.
"""

import argparse
import pathlib
import zlib

import nanogpt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather, all_reduce

import isthmus


class Experts(nn.Module):
    """Sends each token to one of `count` experts.

    A bias of the router keeps their loads equal without a loss of its own (arXiv 2408.15664).
    """

    def __init__(self, width, count, speed=0.001):
        super().__init__()
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.count, self.speed = count, speed
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleDict(
            {
                str(number): nn.Sequential(
                    nn.Linear(width, 2 * width, bias=False), nn.GELU(), nn.Linear(2 * width, width, bias=False)
                )
                for number in range(self.rank, count, self.ranks)
            }
        )
        self.register_buffer("balance", torch.zeros(count))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).sigmoid()
        chosen = (scores + self.balance).argmax(dim=-1)
        everywhere = [torch.empty_like(chosen) for _ in range(self.ranks)]
        dist.all_gather(everywhere, chosen)
        everywhere = torch.cat(everywhere)
        inputs = torch.cat(all_gather(tokens))
        outputs = torch.zeros_like(inputs)
        for number, expert in self.experts.items():
            mine = (everywhere == int(number)).nonzero()[:, 0]
            outputs = outputs.index_add(0, mine, expert(inputs[mine]))
        outputs = all_reduce(outputs).chunk(self.ranks)[self.rank]
        if self.training:
            load = torch.bincount(everywhere, minlength=self.count).float()
            self.balance += self.speed * (load.mean() - load).sign()
        return (outputs * scores.gather(1, chosen[:, None])).view_as(x)


def make_model(experts, width=64):
    torch.manual_seed(1)  # all replicas start with the same parameters
    model = nanogpt.GPT(layers=2, width=width)
    for layer in model.layers:
        layer.mlp = Experts(width, experts)
    for name, parameter in model.named_parameters():
        if ".mlp." in name:  # by name, since ranks have different experts
            nn.init.normal_(parameter, std=0.02, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    return model


def main():
    options, rest = isthmus.worker_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="runs/moe", help="folder of checkpoints and models")
    parser.add_argument("--experts", type=int, default=4)
    more = parser.parse_args(rest)
    folder = pathlib.Path(more.output) / options["name"]
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    model = make_model(more.experts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    if options["resume"]:
        state = torch.load(nanogpt.newest_checkpoint(folder) / f"rank-{rank}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        options["resume"] = state["loop"]
    with isthmus.OuterLoop(
        model=model, optimizer=optimizer, buffers=["*.balance"], group=dist.group.WORLD, **options
    ) as loop:
        text = nanogpt.read(loop.experiment.data_path)
        running = loop.running
        while running:
            ids, targets = nanogpt.batch_at(loop, text, rank)
            loss = nanogpt.loss_of(model, ids, targets) / ranks
            loss.backward()
            for name, parameter in model.named_parameters():
                if ".experts." not in name:  # an expert has its gradient from the tokens of all ranks already
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(loss.detach())
            running = loop.after_step(loss, tokens=ranks * ids.numel())
            if loop.wants_checkpoint:
                target = folder / f"checkpoint-{loop.step}"
                target.mkdir(exist_ok=True)
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loop": loop.state_dict()}
                torch.save(state, target / f"rank-{rank}.pt")
        values = loop.global_values()
        if loop.is_first:
            torch.save(values, folder / "model.pt")
            print(f"loss {loss.item():.4f}, global hash {loop.global_hash}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

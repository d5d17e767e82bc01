"""A site of two ranks as one replica with expert parallelism: each rank has one expert. --plain has both, alone."""

import argparse

import torch
import torch.multiprocessing
import toy

import isthmus

EXPERTS = 2


class Model(toy.Model):
    """Each batch goes through one expert."""

    def __init__(self, experts, scales=3):
        super().__init__(layers=2)
        whole = torch.nn.ModuleList(toy.Model(layers=1) for _ in range(EXPERTS))
        with torch.no_grad():
            for number, expert in enumerate(whole):
                expert.head.bias.fill_(number)
        self.experts = torch.nn.ModuleDict({str(number): whole[number] for number in experts})
        self.scale = torch.nn.Parameter(torch.ones(scales))

    def forward(self, x, expert):
        return self.scale * (super().forward(x) + self.experts[str(expert)](x))

    def save_pretrained(self, folder, state_dict=None):
        torch.save(state_dict or self.state_dict(), folder / "model.pt")


def loss_of(model, name, expert, step):
    x, y = toy.batch(f"{name}-{expert}", step)
    return torch.nn.functional.cross_entropy(model(x, expert), y)


def train(rank, more, options):
    torch.set_num_threads(1)  # again after a fork, before other threads exist
    group = None
    if not more.plain:
        store = f"file://{more.store}"
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=EXPERTS)
        group = torch.distributed.group.WORLD
    # The first rank has the last expert, so that the order of the ranks is not that of the experts.
    mine = range(EXPERTS) if more.plain else [EXPERTS - 1 - rank]
    model = Model(mine, scales=4 if more.other_shape and rank == 1 else 3)
    optimizer = toy.optimizer_of(model)
    with isthmus.OuterLoop(model=model, group=group, **options) as loop:
        running = loop.running
        while running:
            step = loop.step + 1
            for expert in mine:
                (loss_of(model, options["name"], expert, step) / EXPERTS).backward()
            for name, parameter in model.named_parameters():
                if group is not None and not name.startswith("experts."):
                    torch.distributed.all_reduce(parameter.grad)
            isthmus.synchronous_step(loop, optimizer)
            optimizer.zero_grad()
            running = loop.after_step()
        values = loop.global_values()
        with loop.global_parameters():
            for name, parameter in model.named_parameters():
                assert torch.equal(parameter.detach(), values[name]), name
        loop.save_pretrained(f"{more.values}.folder", replace=True)
        if rank == 0:
            saved = torch.load(f"{more.values}.folder/model.pt", weights_only=True)
            assert saved.keys() == values.keys() and all(torch.equal(saved[name], values[name]) for name in values)
            torch.save(values, more.values)
            print("hash", loop.global_hash, flush=True)
    if group is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    options, rest = isthmus.worker_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--values", required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--other-shape", action="store_true", help="a parameter of rank 1 has another shape")
    more = parser.parse_args(rest)
    if more.plain:
        train(0, more, options)
    else:
        torch.multiprocessing.start_processes(train, (more, options), nprocs=EXPERTS, start_method="fork")

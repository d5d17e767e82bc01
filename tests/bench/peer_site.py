#!/usr/bin/env python3
"""One site of compare_torchft.py: trains examples/python/nanogpt.py's GPT with one of its systems.

Writes to --out/NAME.jsonl a line for each step, with the seconds that the site has computed, and the global parameters
of every --every steps to --out/NAME-STEP.pt.
"""

import argparse
import datetime
import importlib.util
import json
import pathlib
import sys
import time
import zlib

import torch

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "build/release/python"))
BATCH, LENGTH = 16, 128


def example():
    found = importlib.util.spec_from_file_location("nanogpt", ROOT / "examples/python/nanogpt.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Site:
    """The model, its batches and the records, the same for all systems."""

    def __init__(self, options):
        torch.set_num_threads(1)
        torch.manual_seed(1)  # all sites start with the same parameters
        self.options, self.nanogpt = options, example()
        self.model = self.nanogpt.GPT()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        text = self.nanogpt.read(options.data)
        self.train = text[: -len(text) // 20]
        self.computed = 0.0
        self.records = open(options.out / f"{options.name}.jsonl", "a")

    def step(self, number):
        """The forward and backward pass and the inner optimizer's step. Batches depend on the name and the number."""
        begin = time.monotonic()
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.options.name} {number}".encode()))
        ids, targets = self.nanogpt.batch_of(self.train, generator, BATCH, LENGTH)
        self.optimizer.zero_grad()
        self.nanogpt.loss_of(self.model, ids, targets).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.computed += time.monotonic() - begin

    def update(self):
        """The inner optimizer's step; with torchft its hooks synchronise here, so it is measured apart."""
        begin = time.monotonic()
        self.optimizer.step()
        return time.monotonic() - begin

    def record(self, number):
        self.line = {"step": number, "time": time.time(), "computed": self.computed}
        print(json.dumps(self.line), file=self.records, flush=True)

    def amend(self):
        """Writes the last record once more, with `computed` as it is now."""
        print(json.dumps({**self.line, "computed": self.computed}), file=self.records, flush=True)

    def save(self, number, model=None):
        values = {name: parameter.detach().clone() for name, parameter in (model or self.model).named_parameters()}
        torch.save(values, self.options.out / f"{self.options.name}-{number}.pt")


def train_isthmus(site):
    import isthmus

    options = site.options
    loop = isthmus.OuterLoop(
        options.config,
        site.model,
        name=options.name,
        coordinator=options.coordinator,
        listen=f"{options.address}:7001",
        certs=options.certs,
        tokens=BATCH * LENGTH,
        quiet=True,
    )
    with loop:
        site.record(loop.step)
        running = loop.running
        while running:
            site.step(loop.step + 1)
            site.computed += site.update()
            running = loop.after_step()
            site.record(loop.step)
            if loop.step % options.every == 0 or not running:
                with loop.global_parameters():
                    site.save(loop.step)


def train_torchft(site):
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    options, model, inner = site.options, site.model, site.optimizer
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    store = torch.distributed.TCPStore(options.address, 0, is_master=True, wait_for_workers=False)

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])
        outer.load_state_dict(state["outer"])

    patience = datetime.timedelta(seconds=60)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=patience),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict(), "outer": outer.state_dict()},
        replica_id=options.name,
        store_addr=options.address,
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname=options.address,
        lighthouse_addr=f"http://{options.coordinator}",
        use_async_quorum=False,
        timeout=patience,
    )
    # One exchange for all tensors instead of one for each, which would take several round trips.
    with DiLoCo(manager, [model], inner, outer, sync_every=options.sync_every, use_bucketization=True):
        site.record(0)
        fastest = None  # of the updates without a sync: the inner optimizer's own time
        while manager.current_step() * options.sync_every < options.steps:
            rounds = manager.current_step()
            for local in range(1, options.sync_every + 1):
                site.step(rounds * options.sync_every + local)
                seconds = site.update()
                fastest = seconds if fastest is None else min(fastest, seconds)
                site.computed += min(seconds, 3 * fastest)
                site.record(rounds * options.sync_every + local)
            number = manager.current_step() * options.sync_every
            if number % options.every == 0:
                site.save(number)
    manager.shutdown(wait=False)


def train_data_parallel(site):
    """PyTorch's DistributedDataParallel over Gloo, which sums fp32 gradients while the backward pass runs."""
    options, first = site.options, site.options.name == "site-1"
    host, port = options.coordinator.rsplit(":", 1)
    store = torch.distributed.TCPStore(host, int(port), 2, is_master=first)
    torch.distributed.init_process_group("gloo", store=store, rank=0 if first else 1, world_size=2)
    plain = site.model
    site.model = torch.nn.parallel.DistributedDataParallel(plain)
    site.record(0)
    took = []
    for number in range(1, options.steps + 1):
        site.step(number)
        took.append(site.update())
        site.record(number)
        if number % options.every == 0:
            site.save(number, plain)
    # Those steps compute while they wait: measure steps that send nothing, after the last one.
    site.computed = 0.0
    with site.model.no_sync():
        for number in range(options.steps + 1, options.steps + 11):
            site.step(number)
    site.computed = site.computed / 10 * options.steps + sum(took)
    site.amend()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=["isthmus", "diloco", "torchft", "data_parallel"])
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", required=True, help="of this site")
    parser.add_argument("--coordinator", required=True, help="HOST:PORT of the coordinator or the lighthouse")
    parser.add_argument("--data", required=True, help="folder of *.h files")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--sync-every", type=int, required=True)
    parser.add_argument("--config", help="experiment of isthmus")
    parser.add_argument("--certs", help="certificates of isthmus")
    options = parser.parse_args()
    trains = {"torchft": train_torchft, "data_parallel": train_data_parallel}
    trains.get(options.system, train_isthmus)(Site(options))


if __name__ == "__main__":
    main()

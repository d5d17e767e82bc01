"""Trains a tiny model with Lightning's Trainer, as a site of --ranks. Checks its parameters at each event.

Saves to --values the global parameters of the end, those of each checkpoint, and the model that training left.
"""

import argparse
import os
import pathlib
import zlib

import pytorch_lightning
import torch
import torch.multiprocessing
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from toy import copy_of, equal

import isthmus
from isthmus.lightning import OuterLoopCallback


class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))

    def loss_of(self, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layers(x), y)

    def training_step(self, batch, batch_idx):
        return self.loss_of(batch)

    def validation_step(self, batch, batch_idx):
        self.log("held_out", self.loss_of(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def data_of(name, batch):
    """Equal batches, since Lightning begins with the first one when it continues within an epoch."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    rows = torch.utils.data.TensorDataset(*(torch.randn(batch, 8, generator=generator).repeat(48, 1) for _ in range(2)))
    return torch.utils.data.DataLoader(rows, batch_size=batch)


class Probe(Callback):
    """Compares the module with the global parameters at each event."""

    def __init__(self, callback, fail_at):
        self.callback, self.fail_at, self.validated = callback, fail_at, []

    def has_global(self, module):
        return equal(copy_of(module), self.callback.loop.global_values())

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step in (8, 16):
            assert not self.has_global(module), "training continues from the global parameters"
        if trainer.global_step == self.fail_at:
            raise RuntimeError("the user's own error")

    def on_validation_end(self, trainer, module):
        if self.callback.loop is not None:
            assert self.has_global(module), f"the validation of step {trainer.global_step} is of other parameters"
            self.validated.append((trainer.global_step, trainer.callback_metrics["held_out"].item()))


def train(rank, more, options):
    torch.set_num_threads(1)  # again after a fork, before other threads exist
    config, name = options["config"], options["name"]
    if more.ranks > 1:
        # Lightning reads these, as torchrun sets them; the address is not used, because the group exists.
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(more.ranks), GROUP_RANK="0")
        os.environ.update(LOCAL_WORLD_SIZE=str(more.ranks), TORCHELASTIC_RUN_ID="none")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
        store = f"file://{more.values}.store"
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=more.ranks)
    torch.manual_seed(1)
    module = Module()
    callback = OuterLoopCallback(config, **{k: v for k, v in options.items() if k not in ("config", "resume")})
    probe = Probe(callback, more.fail_at)
    folder = pathlib.Path(more.output)
    saves = ModelCheckpoint(folder, "{step}", every_n_train_steps=13, save_top_k=-1)
    only_model = ModelCheckpoint(folder, "model-{step}", monitor="held_out", save_weights_only=True, save_top_k=-1)
    trainer = pytorch_lightning.Trainer(
        accelerator="cpu",
        devices=more.ranks,
        strategy="ddp" if more.ranks > 1 else "auto",
        max_steps=more.max_steps,
        accumulate_grad_batches=2,
        val_check_interval=16,  # batches
        callbacks=[saves, only_model, callback, probe],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, data_of(name, 4 // more.ranks), data_of("held-out", 4), ckpt_path=more.load)
    assert callback.loop._moments is not None  # a replica that joins late gets them
    left, final = copy_of(module), callback.loop.global_values()
    if rank == 0:
        files = {file.name: torch.load(file, weights_only=True) for file in folder.iterdir()}
        saved = {file: found["state_dict"] for file, found in files.items()}
        own = {file: found["callbacks"]["OuterLoopCallback"]["own"] for file, found in files.items() if "callbacks" in found}
        found = {"left": left, "final": final, "saved": saved, "own": own, "validated": probe.validated}
        torch.save(found, more.values)
        print("hash", callback.loop.global_hash, flush=True)
    if more.ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    options, rest = isthmus.worker_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--values", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--load", help="checkpoint to resume from")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=24)
    parser.add_argument("--fail-at", type=int, default=-1, help="raise an exception at this step")
    more = parser.parse_args(rest)
    if more.ranks == 1:
        train(0, more, options)
    else:
        torch.multiprocessing.start_processes(train, (more, options), nprocs=more.ranks, start_method="fork")

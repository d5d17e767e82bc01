"""Lightning's `Trainer` as one replica of a run.

    trainer = Trainer(max_steps=20000, callbacks=[OuterLoopCallback("experiment.yaml", name="eu", coordinator="host:7000")])
    trainer.fit(module, data)
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Mapping, Optional

import torch

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    try:
        from lightning.pytorch import Callback  # type: ignore[import-not-found,no-redef]
    except ImportError:  # the same under its older name
        from pytorch_lightning import Callback  # type: ignore[no-redef]

from ._native import ConfigError
from ._trainers import Lender, Warnings, restore_own, with_moments
from .loop import OuterLoop


class OuterLoopCallback(Callback):
    """Joins the run when training begins, and calls `after_step` after each step of the optimizer.

    Arguments are those of `OuterLoop` without `model`; with several ranks `group` is Lightning's own. The trainer ends
    with the run, if its `max_steps` or `max_epochs` allow as many steps.

    Validations and checkpoints have the global parameters, and so has the module after `fit()`. Checkpoints include
    this replica's own parameters and the loop's state, and `fit(ckpt_path=...)` continues from both: save at the same
    steps on all replicas. For strategies in which each rank has whole parameters: one device, or DDP.

    Args:
        tokens_of: tokens of a batch of one rank. Default: the sequences of a step (`batch_size` of the trainer's data
            loader times `accumulate_grad_batches` times ranks) times `data.seq_len`, or `tokens` if it is given.
    """

    def __init__(self, config: Any, *, tokens_of: Optional[Callable[[Any], int]] = None, **options: Any) -> None:
        self._config, self._options, self._tokens_of = config, options, tokens_of
        self.loop: Optional[OuterLoop] = None
        """None before training begins."""
        self._resume: Mapping[str, Any] = {}
        self._over = False
        self._steps = self._tokens = 0
        self._loss: Optional[torch.Tensor] = None

    # ---- training ----

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        options = dict(self._options)
        if trainer.world_size > 1 and options.get("group") is None:
            options["group"] = torch.distributed.group.WORLD
        if trainer.global_step > 0 and not options.get("resume"):
            options["resume"] = self._saved(trainer)
            restore_own(pl_module, options["resume"]["own"], options.get("buffers", ()), "the checkpoint")
        with_moments(options, trainer.optimizers)
        self.loop = loop = OuterLoop(self._config, pl_module, **options)
        self._lender, self._warnings = Lender(loop), Warnings(loop)
        self._over, self._steps, self._tokens, self._loss = False, trainer.global_step, 0, None
        self._check(trainer)
        self._compare(trainer)
        if loop.is_first and not options.get("quiet"):
            print(
                f"{loop.name}: the trainer's validations and checkpoints, and the module after training, have the global "
                "parameters",
                flush=True,
            )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._lender.take_back()
        if self._tokens_of is not None:
            self._tokens += self._tokens_of(batch) * trainer.world_size

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self._loop.running:
            self._loop.average_gradients(self._tokens or None)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):  # the part of an accumulated loss
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        loss, tokens = self._loss, self._tokens or None
        self._loss, self._tokens = None, 0
        if loss is not None and loss.is_cuda and self._steps % trainer.log_every_n_steps != 0:
            loss = None  # it would be waited for
        if not self._loop.running or not self._loop.after_step(loss, tokens):
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._lender.lend()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._lender.lend()
        self._lender.give()
        self._over = True
        self._loop.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.loop is not None and not self._over:
            self._over = True
            self.loop._leave_as(f"{type(exception).__name__}: {exception}")

    # ---- validations and checkpoints ----

    # Lightning calls its checkpoint callbacks after all others: after a validation or an epoch they find the global
    # parameters in the module, which gets its own back before the next batch.

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self.loop is not None and not self._over:
            self._lender.lend()

    def state_dict(self) -> dict[str, Any]:
        if self.loop is None or self._over:
            return {}
        return {**self._lender.saved(), "trainer_step": self._steps}

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Replaces this replica's parameters in a checkpoint that is written during training."""
        if self.loop is None or self._over or self._lender.has_lent:
            return
        with self._loop.global_parameters():
            checkpoint["state_dict"] = {
                name: value.detach().clone() for name, value in pl_module.state_dict().items()
            }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resume = state_dict

    def _saved(self, trainer: Any) -> Mapping[str, Any]:
        if self._resume.get("trainer_step") != trainer.global_step:
            raise ConfigError(
                f"the trainer continues from step {trainer.global_step}, and its checkpoint has no state of the outer "
                "loop; expected a checkpoint of a run with this callback, written without save_weights_only"
            )
        return self._resume

    # ---- the trainer's settings and the config's ----

    def _check(self, trainer: Any) -> None:
        if self._loop._storage.sharded:
            raise ConfigError(
                "the trainer's strategy shards the parameters; expected one with whole parameters on each rank, such as "
                'strategy="ddp". For fully_shard, use isthmus.OuterLoop in a training loop of your own'
            )
        if self._loop.synchronous and len(trainer.optimizers) > 1:
            raise ConfigError(
                f"the module has {len(trainer.optimizers)} optimizers; expected one with outer.warmup_steps above 0"
            )
        for callback in trainer.checkpoint_callbacks:
            every = getattr(callback, "_every_n_train_steps", 0)
            if getattr(callback, "save_weights_only", False) and (every or getattr(callback, "_train_time_interval", None)):
                raise ConfigError(
                    "a ModelCheckpoint with save_weights_only and every_n_train_steps or train_time_interval would save "
                    "this replica's own parameters; leave save_weights_only out, or save after validations or epochs"
                )

    def _compare(self, trainer: Any) -> None:
        loop = self._loop
        end = trainer.estimated_stepping_batches
        configs = trainer.lr_scheduler_configs
        scheduler = configs[0].scheduler if configs and configs[0].interval == "step" else None
        self._warnings.compare_steps(end - trainer.global_step, f"{end} (max_steps or max_epochs)", scheduler)
        size = getattr(trainer.train_dataloader, "batch_size", None)
        if self._tokens_of is not None or self._options.get("tokens") or not isinstance(size, int):
            return
        batch = size * trainer.accumulate_grad_batches * trainer.world_size
        loop.tokens = batch * loop.experiment.sequence_length
        made_of = f"batch_size {size}, accumulate_grad_batches {trainer.accumulate_grad_batches}, {trainer.world_size} ranks"
        self._warnings.compare_batch(batch, made_of, "pass tokens_of=... to count the tokens")

    @property
    def _loop(self) -> OuterLoop:
        assert self.loop is not None, "training has not begun"
        return self.loop

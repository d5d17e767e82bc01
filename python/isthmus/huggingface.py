"""Hugging Face's `Trainer` as one replica of a run.

    trainer = Trainer(model=model, args=arguments, train_dataset=data,
                      callbacks=[OuterLoopCallback("experiment.yaml", name="eu", coordinator="host:7000")])
    trainer.train()
"""

from __future__ import annotations

import os
import re
from typing import Any, Optional

import torch
from transformers import TrainerCallback

from ._native import ConfigError
from .loop import OuterLoop

STATE_FILE = "isthmus.pt"


class OuterLoopCallback(TrainerCallback):
    """Joins the run when training begins, and calls `after_step` after each optimizer step.

    Args and keyword arguments are those of `OuterLoop` without `model`. The trainer ends where the run does, if its
    `max_steps` is not below `run.steps`. Checkpoints of the trainer get the loop's state beside theirs, and
    `resume_from_checkpoint=FOLDER` goes on from it: let `save_steps` be the same on all replicas.
    """

    def __init__(self, config: Any, **options: Any) -> None:
        self._config, self._options = config, options
        self.loop: Optional[OuterLoop] = None
        """From the begin of training on."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        options = dict(self._options)
        folder = args.resume_from_checkpoint
        if state.global_step > 0 and not options.get("resume"):
            folder = folder if isinstance(folder, str) else _newest_checkpoint(args.output_dir)
            file = os.path.join(folder, STATE_FILE)
            if not os.path.exists(file):
                raise ConfigError(f"{folder} has no {STATE_FILE}: it was not saved by a trainer with this callback")
            options["resume"] = torch.load(file, weights_only=True)
        self.loop = OuterLoop(self._config, model, **options)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._loop.average_gradients()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        history = state.log_history
        loss = history[-1].get("loss") if history else None
        if not self._loop.after_step(loss):
            control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        if os.path.isdir(folder):
            torch.save(self._loop.state_dict(), os.path.join(folder, STATE_FILE))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._loop.close()

    @property
    def _loop(self) -> OuterLoop:
        assert self.loop is not None, "training has not begun"
        return self.loop


def _newest_checkpoint(folder: str) -> str:
    names = [name for name in os.listdir(folder) if re.fullmatch(r"checkpoint-\d+", name)]
    found = [(int(name.rsplit("-", 1)[1]), name) for name in names]
    if not found:
        raise ConfigError(f"{folder} has no checkpoint to resume from")
    return os.path.join(folder, max(found)[1])

"""Hugging Face's `Trainer` as one replica of a run.

    trainer = Trainer(model=model, args=arguments, train_dataset=data,
                      callbacks=[OuterLoopCallback("experiment.yaml", name="eu", coordinator="host:7000")])
    trainer.train()
"""

from __future__ import annotations

import os
from typing import Any, Optional

import torch
from transformers import TrainerCallback

from ._native import ConfigError
from .loop import OuterLoop

STATE_FILE = "isthmus.pt"


class OuterLoopCallback(TrainerCallback):
    """Joins the run when training begins, and calls `after_step` after each optimizer step.

    Arguments are those of `OuterLoop` without `model`. The trainer ends with the run, if its `max_steps` is at least
    `run.steps`. The trainer's checkpoints include the loop's state, and `resume_from_checkpoint` resumes it: use the
    same `save_steps` on all replicas. If the checkpoint is outside the trainer's `output_dir`, pass it here too, as
    `resume_from=FOLDER`.
    """

    def __init__(self, config: Any, *, resume_from: Optional[str] = None, **options: Any) -> None:
        self._config, self._options, self._resume_from = config, options, resume_from
        self.loop: Optional[OuterLoop] = None
        """None before training begins."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        options = dict(self._options)
        if state.global_step > 0 and not options.get("resume"):
            options["resume"] = self._saved(args, state)
        self.loop = OuterLoop(self._config, model, **options)

    def _saved(self, args: Any, state: Any) -> dict[str, Any]:
        """The loop's state in the trainer's checkpoint. The trainer does not pass that folder on, so it is derived."""
        folder = self._resume_from or os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        file = os.path.join(folder, STATE_FILE)
        if not os.path.exists(file):
            raise ConfigError(
                f"there is no {file}, but the trainer continues from step {state.global_step}; expected one of a "
                "trainer with this callback (if it is in another folder, pass resume_from=FOLDER)"
            )
        saved = torch.load(file, weights_only=True)
        if saved.get("trainer_step") != state.global_step:
            raise ConfigError(
                f"{file} is of step {saved.get('trainer_step')}, and the trainer continues at step {state.global_step}"
            )
        return saved

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._loop.average_gradients()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        history = state.log_history
        loss = history[-1].get("loss") if history else None
        if not self._loop.after_step(loss):
            control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        saved = self._loop.state_dict()  # all ranks of a site call it
        if not self._loop.is_first:
            return
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        os.makedirs(folder, exist_ok=True)
        file = os.path.join(folder, STATE_FILE)
        torch.save({**saved, "trainer_step": state.global_step}, file + ".part")
        os.replace(file + ".part", file)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._loop.close()

    @property
    def _loop(self) -> OuterLoop:
        assert self.loop is not None, "training has not begun"
        return self.loop

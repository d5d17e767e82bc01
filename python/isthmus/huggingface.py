"""Hugging Face's `Trainer` as one replica of a run.

    trainer = Trainer(model=model, args=arguments, train_dataset=data,
                      callbacks=[OuterLoopCallback("experiment.yaml", name="eu", coordinator="host:7000")])
    trainer.train()
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional

import torch
from transformers import TrainerCallback

from ._native import ConfigError
from ._trainers import Lender, Warnings, restore_own, with_moments
from .loop import OuterLoop

STATE_FILE = "isthmus.pt"


class OuterLoopCallback(TrainerCallback):
    """Joins the run when training begins, and calls `after_step` after each optimizer step.

    Arguments are those of `OuterLoop` without `model`. The trainer ends with the run, if its `max_steps` is at least
    `run.steps`.

    The trainer's evaluations and checkpoints have the global parameters, and so has the model after `train()`: those of
    the end, or of the best checkpoint with `load_best_model_at_end`. Another callback that requests an evaluation or a
    checkpoint must come before this one in `callbacks`. With several ranks, pass `group`.

    The trainer's checkpoints include this replica's own parameters and the loop's state (`isthmus.pt`; not with
    `save_only_model`), and `resume_from_checkpoint` continues from both: use the same `save_steps` on all replicas. If
    the checkpoint is outside the trainer's `output_dir`, pass it here too, as `resume_from=FOLDER`.

    Tokens of a step, unless `tokens` is given: those that the trainer counts with `include_num_input_tokens_seen`;
    otherwise the sequences of its batch times `data.seq_len`.
    """

    def __init__(self, config: Any, *, resume_from: Optional[str] = None, **options: Any) -> None:
        self._config, self._options, self._resume_from = config, options, resume_from
        self.loop: Optional[OuterLoop] = None
        """None before training begins."""
        self._over = False
        self._tokens_seen = 0

    # ---- the trainer's events ----

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        lr_scheduler: Any = None,
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        options = dict(self._options)
        if args.world_size > 1 and options.get("group") is None:
            raise ConfigError(
                f"the trainer has {args.world_size} ranks; expected their process group as "
                "OuterLoopCallback(..., group=torch.distributed.group.WORLD), made after the TrainingArguments"
            )
        if state.global_step > 0 and not options.get("resume"):
            options["resume"] = self._saved(args, state)
        if isinstance(options.get("resume"), Mapping) and "own" in options["resume"]:
            restore_own(model, options["resume"]["own"], options.get("buffers", ()), STATE_FILE)
        with_moments(options, [] if optimizer is None else [optimizer])
        self.loop = OuterLoop(self._config, model, **options)
        self._lender, self._warnings = Lender(self.loop), Warnings(self.loop)
        self._over, self._tokens_seen = False, state.num_input_tokens_seen
        self._take_batch(args)
        end = f"{state.max_steps} (max_steps or num_train_epochs)"
        self._warnings.compare_steps(state.max_steps - state.global_step, end, lr_scheduler)
        if self.loop.is_first and not options.get("quiet"):
            print(
                f"{self.loop.name}: the trainer's evaluations and checkpoints, and the model after training, have the "
                "global parameters",
                flush=True,
            )
        if args.eval_on_start:
            self._lender.lend()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._lender.take_back()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._loop.average_gradients(self._tokens(state))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        history = state.log_history
        loss = history[-1].get("loss") if history else None
        if not self._loop.after_step(loss, self._tokens(state)):
            control.should_training_stop = True
        self._tokens_seen = state.num_input_tokens_seen
        self._lend_if_due(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._lend_if_due(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._expect_global(f"the evaluation at step {state.global_step}")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        self._expect_global(folder)
        if args.save_only_model:
            return
        saved = {**self._lender.saved(), "trainer_step": state.global_step}
        if self._loop.is_first:
            os.makedirs(folder, exist_ok=True)
            file = os.path.join(folder, STATE_FILE)
            torch.save(saved, file + ".part")
            os.replace(file + ".part", file)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        has_best = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if not has_best:
            self._lender.lend()
        self._lender.give()
        self._over = True
        self._loop.close()

    # ---- the global parameters ----

    # The trainer has no event before an evaluation or a checkpoint. Both follow on_step_end, on_epoch_end or
    # on_train_begin, and come before the next on_step_begin: for that time the model has the global parameters.

    def _lend_if_due(self, control: Any) -> None:
        if control.should_evaluate or control.should_save or control.should_training_stop:
            self._lender.lend()

    def _expect_global(self, what: str) -> None:
        if self.loop is not None and not self._over and not self._lender.has_lent:
            self._warnings.warn(
                "order",
                f"{what} has the parameters of this replica alone, not the global ones, because a callback after "
                "OuterLoopCallback requested it; put that callback before OuterLoopCallback in the trainer's callbacks",
            )

    # ---- resuming ----

    def _saved(self, args: Any, state: Any) -> dict[str, Any]:
        """The loop's state in the trainer's checkpoint. The trainer does not pass that folder on, so it is derived."""
        folder = self._resume_from or os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        file = os.path.join(folder, STATE_FILE)
        if not os.path.exists(file):
            raise ConfigError(
                f"there is no {file}, but the trainer continues from step {state.global_step}; expected one of a "
                "trainer with this callback and without save_only_model (if it is in another folder, pass "
                "resume_from=FOLDER)"
            )
        saved = torch.load(file, weights_only=True)
        if saved.get("trainer_step") != state.global_step:
            raise ConfigError(
                f"{file} is of step {saved.get('trainer_step')}, and the trainer continues at step {state.global_step}"
            )
        return saved

    # ---- the trainer's numbers and the config's ----

    def _tokens(self, state: Any) -> Optional[int]:
        """Tokens of the current step, if the trainer has counted them."""
        counted = state.num_input_tokens_seen - self._tokens_seen
        return None if self._options.get("tokens") or counted <= 0 else int(counted)

    def _take_batch(self, args: Any) -> None:
        loop = self._loop
        if self._options.get("tokens"):
            return
        batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        loop.tokens = batch * loop.experiment.sequence_length
        if args.include_num_input_tokens_seen in (False, "no"):
            self._warnings.compare_batch(
                batch,
                f"per_device_train_batch_size {args.train_batch_size}, gradient_accumulation_steps "
                f"{args.gradient_accumulation_steps}, {args.world_size} ranks",
                "include_num_input_tokens_seen of the trainer to count the tokens",
            )

    @property
    def _loop(self) -> OuterLoop:
        assert self.loop is not None, "training has not begun"
        return self.loop

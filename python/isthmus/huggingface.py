"""Hugging Face's `Trainer` as one replica of a run.

    trainer = Trainer(model=model, args=arguments, train_dataset=data,
                      callbacks=[OuterLoopCallback("experiment.yaml", name="eu", coordinator="host:7000")])
    trainer.train()
"""

from __future__ import annotations

import logging
import os
from typing import Any, Mapping, Optional

import torch
from transformers import TrainerCallback

from ._native import ConfigError, DataError
from ._storage import local_tensor, parameters_of
from .loop import OuterLoop

STATE_FILE = "isthmus.pt"

logger = logging.getLogger(__name__)


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
        self._own: Optional[list[torch.Tensor]] = None
        """this replica's own parameters while the model has the global ones"""
        self._over = False
        self._tokens_seen = 0
        self._warned: set[str] = set()

    # ---- the trainer's events ----

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, lr_scheduler: Any = None, **_: Any
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
            _restore(model, options["resume"]["own"])
        self.loop = OuterLoop(self._config, model, **options)
        self._over, self._own, self._tokens_seen = False, None, state.num_input_tokens_seen
        self._take_batch(args)
        self._compare_steps(state, lr_scheduler)
        if self.loop.is_first and not options.get("quiet"):
            print(
                f"{self.loop.name}: the trainer's evaluations and checkpoints, and the model after training, have the "
                "global parameters",
                flush=True,
            )
        if args.eval_on_start:
            self._lend()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._take_back()

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
        lent = self._own is not None
        self._take_back()
        # All ranks of a site make these calls.
        saved = {**self._loop.state_dict(), "own": self._loop._storage.own_values(), "trainer_step": state.global_step}
        if self._loop.is_first:
            os.makedirs(folder, exist_ok=True)
            file = os.path.join(folder, STATE_FILE)
            torch.save(saved, file + ".part")  # before the values change: on a CPU they are the model's memory
            os.replace(file + ".part", file)
        if lent:
            self._lend()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        has_best = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if not has_best:
            self._lend()
        self._loop._take_back(None)
        self._own, self._over = None, True
        self._loop.close()

    # ---- the global parameters ----

    # The trainer has no event before an evaluation or a checkpoint. Both follow on_step_end, on_epoch_end or
    # on_train_begin, and come before the next on_step_begin: for that time the model has the global parameters.

    def _lend_if_due(self, control: Any) -> None:
        if control.should_evaluate or control.should_save or control.should_training_stop:
            self._lend()

    def _lend(self) -> None:
        if self._own is None:
            self._own = self._loop._lend()

    def _take_back(self) -> None:
        if self._own is not None:
            self._loop._take_back(self._own)
            self._own = None

    def _expect_global(self, what: str) -> None:
        if self.loop is not None and not self._over and self._own is None:
            self._warn(
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
        if args.include_num_input_tokens_seen in (False, "no") and batch != loop.experiment.batch:
            self._warn(
                "batch",
                f"the trainer's batch is {batch} sequences (per_device_train_batch_size {args.train_batch_size}, "
                f"gradient_accumulation_steps {args.gradient_accumulation_steps}, {args.world_size} ranks), and "
                f"inner.batch is {loop.experiment.batch}; this replica's contributions have the weight of {loop.tokens} "
                f"tokens a step: {batch} sequences of data.seq_len {loop.experiment.sequence_length}. Set inner.batch "
                f"to {batch}, or include_num_input_tokens_seen of the trainer to count the tokens",
            )

    def _compare_steps(self, state: Any, lr_scheduler: Any) -> None:
        loop = self._loop
        if state.max_steps - state.global_step < loop.steps - loop.step:
            self._warn(
                "steps",
                f"the trainer ends at its step {state.max_steps} (max_steps or num_train_epochs), and run.steps is "
                f"{loop.steps}: this replica then leaves the run, and the others continue without it. Set max_steps "
                f"to {loop.steps}",
            )
        length = _length_of(lr_scheduler)
        if length is None or length == loop.steps or (length == state.max_steps and "steps" in self._warned):
            return
        self._warn(
            "schedule",
            f"the schedule of the learning rate has {length} steps, and run.steps is {loop.steps}: "
            + ("the run ends before it" if length > loop.steps else "it ends before the run")
            + f". Set max_steps to {loop.steps}, or give the trainer a schedule of that length",
        )

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned and self._loop.is_first:
            logger.warning("isthmus: %s", text)
        self._warned.add(kind)

    @property
    def _loop(self) -> OuterLoop:
        assert self.loop is not None, "training has not begun"
        return self.loop


def _restore(model: torch.nn.Module, own: Mapping[str, torch.Tensor]) -> None:
    """Gives the model the parameters that its replica had; the trainer has loaded the global ones."""
    parameters = parameters_of(model)
    if {n: tuple(p.shape) for n, p in parameters.items()} != {n: tuple(v.shape) for n, v in own.items()}:
        raise DataError(f"resume: {STATE_FILE} is of a model with other names or shapes of parameters")
    with torch.no_grad():
        for name, parameter in parameters.items():
            value, mesh = own[name], getattr(parameter, "device_mesh", None)
            if mesh is not None:
                from torch.distributed.tensor import distribute_tensor

                value = value.to(device=mesh.device_type, dtype=parameter.dtype)
                value = local_tensor(distribute_tensor(value, mesh, parameter.placements))  # type: ignore[attr-defined]
            local_tensor(parameter).copy_(value)


def _length_of(lr_scheduler: Any) -> Optional[int]:
    """Steps of a learning rate schedule of transformers that has a length; otherwise None."""
    lr_scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)  # below accelerate's
    lambdas = getattr(lr_scheduler, "lr_lambdas", None) or [None]
    settings = getattr(lambdas[0], "keywords", {})
    if "num_decay_steps" in settings:
        return sum(settings[f"num_{part}_steps"] for part in ("warmup", "stable", "decay"))
    return settings.get("num_training_steps")

"""Common parts of the callbacks for Hugging Face's Trainer and for Lightning's."""

from __future__ import annotations

import logging
from typing import Any, Iterable, Mapping, Optional, Sequence

import torch

from ._moments import keys_of
from ._native import DataError
from ._storage import buffers_of, local_tensor, parameters_of
from .loop import OuterLoop

logger = logging.getLogger("isthmus")


class Lender:
    """Puts the global parameters into the model between a trainer's steps, and this replica's own back before a step.

    On a site with several ranks all ranks make the same calls.
    """

    def __init__(self, loop: OuterLoop) -> None:
        self._loop = loop
        self._own: Optional[list[torch.Tensor]] = None

    @property
    def has_lent(self) -> bool:
        """Whether the model has the global parameters."""
        return self._own is not None

    def lend(self) -> None:
        if self._own is None:
            self._own = self._loop._lend()

    def take_back(self) -> None:
        if self._own is not None:
            self._loop._take_back(self._own)
            self._own = None

    def give(self) -> None:
        """Leaves the parameters that the model has, for good."""
        self._loop._take_back(None)
        self._own = None

    def saved(self) -> dict[str, Any]:
        """The loop's state, and `own`: this replica's parameters by name."""
        has_lent = self.has_lent
        self.take_back()
        out = {**self._loop.state_dict(), "own": self._loop._storage.own_values()}
        if has_lent:
            self.lend()
        return out


class Warnings:
    """Each kind of warning once, from the first rank of a site."""

    def __init__(self, loop: OuterLoop) -> None:
        self._loop = loop
        self._given: set[str] = set()

    def __contains__(self, kind: str) -> bool:
        return kind in self._given

    def warn(self, kind: str, text: str) -> None:
        if kind not in self._given and self._loop.is_first:
            logger.warning("isthmus: %s", text)
        self._given.add(kind)

    def compare_steps(self, left: float, end: str, lr_scheduler: Any) -> None:
        """Warns if the trainer's steps or its schedule do not fit the run's.

        Args:
            left: steps that the trainer will make from here on.
            end: its last step and where the user sets it, for example "40 (max_steps)".
            lr_scheduler: its first schedule of the learning rate, if it has one.
        """
        steps = self._loop.steps
        if left < steps - self._loop.step:
            self.warn(
                "steps",
                f"the trainer ends at its step {end}, and run.steps is {steps}: this replica then leaves the run, and "
                f"the others continue without it. Set max_steps to {steps}",
            )
        length = schedule_length(lr_scheduler)
        if length is None or length == steps or (length == left + self._loop.step and "steps" in self):
            return
        self.warn(
            "schedule",
            f"the schedule of the learning rate has {length} steps, and run.steps is {steps}: "
            + ("the run ends before it" if length > steps else "it ends before the run")
            + f". Set max_steps to {steps}, or give the trainer a schedule of that length",
        )

    def compare_batch(self, batch: int, made_of: str, remedy: str) -> None:
        """Warns if the sequences of one step differ from `inner.batch`."""
        experiment = self._loop.experiment
        if batch != experiment.batch:
            self.warn(
                "batch",
                f"the trainer's batch is {batch} sequences ({made_of}), and inner.batch is {experiment.batch}; this "
                f"replica's contributions have the weight of {self._loop.tokens} tokens a step: {batch} sequences of "
                f"data.seq_len {experiment.sequence_length}. Set inner.batch to {batch}, or {remedy}",
            )


def with_moments(options: dict[str, Any], optimizers: Iterable[Any]) -> None:
    """Gives the loop the trainer's optimizers, unless the user has or moments of one are not known."""
    plain = [getattr(optimizer, "optimizer", optimizer) for optimizer in optimizers]  # below accelerate's
    if "optimizer" not in options and plain and all(keys_of(optimizer) for optimizer in plain):
        options["optimizer"] = plain


def restore_own(model: torch.nn.Module, own: Mapping[str, torch.Tensor], buffers: Sequence[str], file: str) -> None:
    """Gives the model the parameters that its replica had; the trainer has loaded the global ones."""
    parameters: dict[str, torch.Tensor] = {**parameters_of(model), **buffers_of(model, buffers)}
    if {n: tuple(p.shape) for n, p in parameters.items()} != {n: tuple(v.shape) for n, v in own.items()}:
        raise DataError(f"resume: {file} is of a model with other names or shapes of parameters")
    with torch.no_grad():
        for name, parameter in parameters.items():
            value, mesh = own[name], getattr(parameter, "device_mesh", None)
            if mesh is not None:
                from ._sharded import distribute_tensor

                value = value.to(device=mesh.device_type, dtype=parameter.dtype)
                value = local_tensor(distribute_tensor(value, mesh, parameter.placements))  # type: ignore[attr-defined]
            local_tensor(parameter).copy_(value)


def schedule_length(lr_scheduler: Any) -> Optional[int]:
    """Steps of a schedule of transformers or of torch's CosineAnnealingLR and OneCycleLR; None for others."""
    lr_scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)  # below accelerate's
    for name in ("T_max", "total_steps"):
        if isinstance(getattr(lr_scheduler, name, None), int):
            return getattr(lr_scheduler, name)
    lambdas = getattr(lr_scheduler, "lr_lambdas", None) or [None]
    settings = getattr(lambdas[0], "keywords", {})
    if "num_decay_steps" in settings:
        return sum(settings[f"num_{part}_steps"] for part in ("warmup", "stable", "decay"))
    return settings.get("num_training_steps")

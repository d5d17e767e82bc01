"""Follows a run's global parameters without taking part in the run."""

from __future__ import annotations

import weakref
from typing import Any, Iterator, Mapping, Optional, Sequence, Union

import torch

from . import _native
from ._experiment import experiment_of, placement_of
from ._storage import buffers_of, whole_parameters_of


class Observer:
    """Follows a live run: `model` gets the global parameters of each step that the run evaluates.

        watch = isthmus.Observer("experiment.yaml", model, name="watch", coordinator="host:7000")
        for step in watch:
            print(step, evaluate(model))
        print("at the end", evaluate(model), watch.global_hash)

    The run does not depend on it: it is not a replica, opens no port, and no member waits for it. The constructor waits
    until the run has begun. It works like `isthmus observe`, but with any model.

    Args:
        config, name, coordinator, site, certs, insecure, settings, fragments, buffers: as for `OuterLoop`; config,
            fragments and buffers must be those of the run.
        model: has the same names and shapes of parameters as the replicas'. Its values are replaced in place.

    Raises:
        ConfigError: the config or the model is not the run's, or the coordinator refuses the observer.
        NetworkError: the coordinator's address does not answer within `network.join_timeout`.
    """

    def __init__(
        self,
        config: Any,
        model: torch.nn.Module,
        *,
        name: str,
        coordinator: Optional[str] = None,
        site: str = "",
        certs: Optional[str] = None,
        insecure: bool = False,
        settings: Union[Mapping[str, Any], Sequence[str]] = (),
        fragments: Optional[Sequence[Sequence[str]]] = None,
        buffers: Sequence[str] = (),
    ) -> None:
        addresses = {"coordinator": coordinator, "certs": certs}
        self.experiment = experiment_of(config, name, site, settings, addresses, insecure)
        averaged = buffers_of(model, buffers)
        self._parameters = {**whole_parameters_of(model), **averaged}
        self.placement = placement_of(self.experiment, self._parameters, averaged, fragments)
        self._native = _native.Observer.join(
            experiment=self.experiment,
            name=name,
            tensors=[(n, list(shape), begin) for n, shape, begin in self.placement.tensors],
            fragments=self.placement.fragments,
            averaged=self.placement.averaged,
            torch=torch.__version__,
        )
        self._end = weakref.finalize(self, self._native.close)

    def __iter__(self) -> Iterator[Optional[int]]:
        """Each step that the run evaluates (`run.eval_every`), once the model has its global parameters.

        Yields None if they belong to no single step because the run continued while they were copied. Waits for the
        next evaluated step; rounds that arrive while the program evaluates are queued. Ends with the run; the model
        then has the final parameters.

        Raises:
            DivergenceError: the parameters here differ from those with which the run ended.
            NetworkError: the connection is lost.
            KeyboardInterrupt, and other exceptions of signal handlers, while it waits.
        """
        while self._native.next():
            self._load()
            yield self._native.step
        if self._native.has_state:
            self._load()
            self._native.verdict()

    def take_newest(self) -> bool:
        """Gives the model the newest global parameters, of any step. Returns False if the run ended before."""
        here = self._native.catch_up()
        if here:
            self._load()
        return here

    @property
    def global_hash(self) -> str:
        """Hash of the global parameters that the model has, and of their rounds: 64 hex digits."""
        return self._native.global_hash()

    @property
    def rounds(self) -> list[int]:
        """Round of each fragment in the global parameters."""
        return self._native.rounds

    def close(self) -> None:
        """Leaves the run; also called at the end of the program."""
        self._end()

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _load(self) -> None:
        values = torch.zeros(self.placement.size)
        self._native.copy_global(values)
        with torch.no_grad():
            for name, shape, begin in self.placement.tensors:
                size = torch.Size(shape).numel()
                self._parameters[name].copy_(values[begin : begin + size].view(shape))

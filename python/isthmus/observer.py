"""A run's global parameters, followed by a program that takes no part in it."""

from __future__ import annotations

import weakref
from typing import Any, Iterator, Mapping, Optional, Sequence, Union

import torch

from . import _native
from ._storage import whole_parameters_of
from .loop import experiment_of, placement_of


class Observer:
    """Follows a live run: `model` gets the global parameters of each step that the run evaluates.

        watch = isthmus.Observer("experiment.yaml", model, name="watch", coordinator="host:7000")
        for step in watch:
            print(step, evaluate(model))
        print("at the end", evaluate(model), watch.global_hash)

    The run does not depend on it: it is no replica, opens no port, and nobody waits for it. Making it waits until the run
    has begun. As `isthmus observe`, for a model of one's own.

    Args:
        config, name, coordinator, site, certs, insecure, settings, fragments: as of `OuterLoop`; the same config and
            fragments as the run has.
        model: with the same names and shapes of parameters as the replicas'. Its values are replaced, in place.

    Raises:
        ConfigError: the config or the model is not the run's, or the coordinator refuses.
        NetworkError: nobody answers at the coordinator's address within `network.join_timeout`.
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
    ) -> None:
        addresses = {"coordinator": coordinator, "certs": certs}
        self.experiment = experiment_of(config, name, site, settings, addresses, insecure)
        self._parameters = whole_parameters_of(model)
        self.placement = placement_of(self.experiment, self._parameters, fragments)
        self._native = _native.Observer.join(
            experiment=self.experiment,
            name=name,
            tensors=[(n, list(shape), begin) for n, shape, begin in self.placement.tensors],
            fragments=self.placement.fragments,
            torch=torch.__version__,
        )
        self._end = weakref.finalize(self, self._native.close)

    def __iter__(self) -> Iterator[Optional[int]]:
        """Each step that the run evaluates (`run.eval_every`), once the model has its global parameters.

        None where they are those of no one step, since the run went on while they came here. Waits for the next one; what
        comes while the program evaluates waits here. Ends with the run, whose last parameters the model has then.

        Raises:
            DivergenceError: what followed from the rounds here is not what the run has ended with.
            NetworkError: the connection is lost.
            KeyboardInterrupt, and what else a signal's handler raises, while it waits.
        """
        while self._native.next():
            self._load()
            yield self._native.step
        if self._native.has_state:
            self._load()
            self._native.verdict()

    def take_newest(self) -> bool:
        """Gives the model the newest global parameters, whatever step they are of. False: the run ended before."""
        here = self._native.catch_up()
        if here:
            self._load()
        return here

    @property
    def global_hash(self) -> str:
        """Of the global parameters that the model has, and the rounds that they are made of: 64 hex digits."""
        return self._native.global_hash()

    @property
    def rounds(self) -> list[int]:
        """Of each fragment, that the global parameters are made of."""
        return self._native.rounds

    def close(self) -> None:
        """Leaves; the end of the program does so too."""
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

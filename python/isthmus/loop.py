"""The outer loop around a training loop of PyTorch."""

from __future__ import annotations

import argparse
import contextlib
import sys
import weakref
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, TypeVar, Union

import torch

from . import _native
from ._native import ConfigError
from ._placement import Placement, place
from ._storage import Storage, parameters_of, whole_parameters_of

STATE_VERSION = 1

Result = TypeVar("Result")


class OuterLoop:
    """One replica of a run.

    Making it joins the run and returns when the first step may begin; that waits for the other replicas. Parameters of
    `model` that are trained move into one flat memory, as the same `torch.nn.Parameter` objects: make it after
    `model.to()` and after what ties, freezes or loads parameters; the optimizer may be made before or after. Buffers
    and frozen parameters stay each replica's own.

    Args:
        config: the experiment in YAML, the same for all (sections `outer`, `network`, `run`).
        model: the module that is trained; also one that `torch.compile` or DistributedDataParallel has wrapped.
        name: of this replica, unique in the run.
        coordinator: HOST:PORT, in place of `network.coordinator`.
        site: whose settings apply; without it the site that the name is of.
        listen, advertise, certs, insecure: as of `isthmus worker`.
        settings: over the config's, as {"outer.sync_every": 60}.
        fragments: `outer.num_fragments` lists of patterns (`model.layers.0.*`), each parameter in exactly one; without
            it the numbered layers are strided over all but the last, which gets the rest.
        resume: what `state_dict` gave in the run's last life. All replicas resume, from the same step.
        tokens: that an inner step is trained on, by all ranks of the site: the weight of this replica's contributions
            beside the others'; `inner.batch` * `data.seq_len` of the config where it is not given.
        quiet: says nothing on standard output.
        group: the process group of this site's ranks, which train as one replica (DistributedDataParallel, or FSDP2's
            `fully_shard`): all make the loop and call the same things; the first is in the run, and the others hear from
            it. What they say of losses, tokens and evaluations does not count. `torch.distributed` must be initialised.
            None: this process alone.

    Raises:
        ConfigError: the config, an argument or the model cannot be used, or the coordinator refuses this replica.
        DataError: a file or the state to resume from cannot be used.
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
        listen: Optional[str] = None,
        advertise: Optional[str] = None,
        certs: Optional[str] = None,
        insecure: bool = False,
        settings: Union[Mapping[str, Any], Sequence[str]] = (),
        fragments: Optional[Sequence[Sequence[str]]] = None,
        resume: Optional[Mapping[str, Any]] = None,
        tokens: Optional[int] = None,
        quiet: bool = False,
        group: Any = None,
    ) -> None:
        addresses = {"coordinator": coordinator, "listen": listen, "advertise": advertise, "certs": certs}
        self.experiment = experiment_of(config, name, site, settings, addresses, insecure)
        self.name = name
        self.tokens = tokens or self.experiment.batch * self.experiment.sequence_length
        self._model = model
        self._borrowed = False
        ranks = None if group is None else _ranks_of(group)
        together = ranks.agree if ranks else _alone
        parameters = together(lambda: parameters_of(model))
        self.placement = together(lambda: placement_of(self.experiment, parameters, fragments))
        self._storage: Storage = together(lambda: _storage_of(model, parameters, self.placement, ranks))
        together(lambda: _restore_master(self._storage, resume))
        resumes = ranks.first_says(resume is not None) if ranks else resume is not None
        if resumes and not self._storage.direct and (self._storage.whole or self._storage.sharded):
            # Where the master is not what the model has, the model is right.
            self._storage.fetch(0, self._storage.size)
        self.is_first = ranks is None or ranks.is_first
        """this process is the one that is in the run: alone, or the first rank of its site"""
        self._native = self._join_as_site(ranks, resume, quiet) if ranks else self._join(resume, quiet)
        self._end = weakref.finalize(self, _leave, self._native)

    def _join(self, resume: Optional[Mapping[str, Any]], quiet: bool, moves: Any = None) -> Any:
        fetch, store = moves.both if moves else self._storage.moves
        return _native.Replica.join(
            experiment=self.experiment,
            name=self.name,
            tensors=[(n, list(shape), begin) for n, shape, begin in self.placement.tensors],
            fragments=self.placement.fragments,
            values=self._storage.values,
            fetch=fetch,
            store=store,
            waiting=moves.waiting if moves else None,
            resume=None if resume is None else resume["replica"].cpu().numpy().tobytes(),
            torch=torch.__version__,
            precision=str(self._storage.dtype).replace("torch.", ""),
            device=str(self._storage.device),
            quiet=quiet,
        )

    def _join_as_site(self, ranks: Any, resume: Optional[Mapping[str, Any]], quiet: bool) -> Any:
        from . import _site

        if not ranks.is_first:
            return _site.OtherRank(ranks, self._storage)
        first = _site.FirstRank(ranks, self._storage)
        first.join(lambda moves: self._join(resume, quiet, moves))
        return first

    # ---- training ----

    def after_step(self, loss: Union[float, torch.Tensor, None] = None, tokens: Optional[int] = None) -> bool:
        """To be called after each inner step (`optimizer.step()`, with gradient accumulation once per such).

        Sends and applies what is due, and returns at once unless a result is due that has not come. While the run is
        paused or rounds do not commit it waits, as `isthmus worker` does.

        Args:
            loss: of the step, in nats per token, for metrics and `isthmus top`. Reading a tensor on a GPU waits for it.
            tokens: that this step was trained on, where it is not `tokens` of the loop.

        Returns:
            Whether another step is to be made. False: the run has made its last step, was stopped, or this replica was
            asked to leave (`stopped`, `leaves`); then `close()`.

        Raises:
            ConfigError: parameters were added, frozen or moved after the loop was made; a step of the warm-up without
                `synchronous_step`; or the run is over.
            NetworkError: the run cannot go on.
            DivergenceError: an outer gradient is not finite.
            KeyboardInterrupt, and what else a signal's handler raises, while it waits.
        """
        self._check_own()
        native = self._native
        if native.is_due:
            self._storage.check()
        if isinstance(loss, torch.Tensor):
            loss = loss.item() if self.is_first else None
        return native.after_step(loss, self.tokens if tokens is None else tokens)

    @property
    def synchronous(self) -> bool:
        """The coming step is one of the synchronous warm-up (`outer.warmup_steps`)."""
        return self._native.synchronous

    def average_gradients(self, tokens: Optional[int] = None) -> None:
        """Replaces the gradients by their mean over all replicas, where the coming step is one of the warm-up.

        `synchronous_step` does it; call it yourself where something stands between gradients and optimizer, as
        clipping. All replicas must then make the same inner step: same optimizer, same settings, same hardware.
        """
        self._check_own()
        if not self.synchronous:
            return
        self._native.check() if hasattr(self._native, "check") else self._storage.check()
        gradients = self._storage.gather_gradients()
        self._native.average_gradients(gradients, self.tokens if tokens is None else tokens)
        self._storage.scatter_gradients(gradients)

    # ---- the global parameters ----

    @contextlib.contextmanager
    def global_parameters(self) -> Iterator[torch.nn.Module]:
        """Within it the model has the global parameters, to be evaluated, sampled or saved; then its own again.

        Takes a copy of the parameters in host memory, and one where they are.
        """
        self._check_own()
        values = self._storage.room()
        self._native.copy_global(values)
        before = self._storage.keep()
        self._borrowed = True
        try:
            self._storage.put(values)
            yield self._model
        finally:
            self._storage.put_back(before)
            self._borrowed = False

    def global_values(self) -> dict[str, torch.Tensor]:
        """The global parameters by name: fp32 in host memory, in their shapes; whole on each rank of a site."""
        values = self._storage.room()
        self._native.copy_global(values)
        if self._storage.sharded:
            values = values if self._storage.whole else torch.zeros(self.placement.size)
            self._native.broadcast(values)
        out = {}
        for name, shape, begin in self.placement.tensors:
            size = torch.Size(shape).numel()
            out[name] = values[begin : begin + size].view(shape)
        return out

    @property
    def global_hash(self) -> str:
        """Of the global parameters and the rounds that they are made of: equal on all replicas, 64 hex digits.

        Of a site of several ranks the first one's alone until the run has ended, then all know it.
        """
        return self._native.global_hash()

    # ---- where it stands ----

    @property
    def step(self) -> int:
        """The agreed step that was made last."""
        return self._native.step

    @property
    def steps(self) -> int:
        """That the run makes (`run.steps`)."""
        return self.experiment.steps

    @property
    def rank(self) -> tuple[int, int]:
        """Place of this replica among those that train now, and their number: for shares of an evaluation."""
        return self._native.rank

    @property
    def running(self) -> bool:
        """Another step is to be made."""
        return self._native.running

    @property
    def stopped(self) -> bool:
        """The run was stopped before its last step, for all."""
        return self._native.stopped

    @property
    def leaves(self) -> str:
        """Why this replica was asked to leave; empty where it was not."""
        return self._native.leaves

    @property
    def frozen(self) -> bool:
        """Rounds do not commit at present: steps are local ones, and `step` stands still."""
        return self._native.frozen

    @property
    def stats(self) -> dict[str, Union[int, float]]:
        """Rounds, waits (seconds) and bytes so far; `states_taken` counts when others' state replaced the local one."""
        return self._native.stats()

    @property
    def wants_evaluation(self) -> bool:
        """`run.eval_every` falls on this step, or the run is over: report one, at best."""
        return self._native.wants_evaluation

    @property
    def wants_checkpoint(self) -> bool:
        """`run.checkpoint_every` falls on this step, an operator asked for one, or the run is over."""
        return self._native.wants_checkpoint

    def report_evaluation(self, nats: float, tokens: int) -> None:
        """Of this step's global parameters on this replica's share: sum of the loss in nats, and tokens it is of.

        The coordinator adds the shares of all replicas and writes the mean.
        """
        self._native.report_evaluation(float(nats), int(tokens))

    # ---- going on later ----

    def state_dict(self) -> dict[str, Any]:
        """What is not in the model: global parameters, momentum, residuals, rounds in flight. Tensors and numbers.

        Save it beside the model's and the optimizer's, at the same step on all replicas (`wants_checkpoint`). Waits for
        the results of rounds in flight, without applying them. Of a site of several ranks all call it, and the first
        one's is what all of them resume with.

        Raises:
            NetworkError: rounds do not commit at present; try again after a step.
        """
        self._check_own()
        out: dict[str, Any] = {
            "version": STATE_VERSION,
            "step": self.step,
            "replica": _bytes_tensor(self._native.save()),
        }
        if not self._storage.direct and self._storage.whole:
            out["values"] = self._storage.values.clone()
        return out

    # ---- the end ----

    def request_stop(self, reason: str) -> None:
        """Asks all replicas to stop at a step that they share; `after_step` returns False there."""
        self._native.request_stop(reason)

    def close(self) -> None:
        """Of a run that is over: hands in this replica's report, and waits until all others have. Else leaves the run.

        The end of a `with` block does it, and the end of the program.

        Raises:
            DivergenceError: the replicas have not ended with the same global parameters.
        """
        self._leave_as("")

    def __enter__(self) -> OuterLoop:
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        self._leave_as("" if kind is None else f"{kind.__name__}: {error}")

    def _leave_as(self, why: str) -> None:
        self._end.detach()
        self._native.close(why)

    def _check_own(self) -> None:
        if self._borrowed:
            raise ConfigError("the model has the global parameters at present: leave global_parameters() first")


def synchronous_step(loop: OuterLoop, optimizer: Any, tokens: Optional[int] = None) -> Any:
    """`optimizer.step()`, in the synchronous warm-up with gradients that are the mean over all replicas.

    In place of `optimizer.step()` where `outer.warmup_steps` is above 0; after the warm-up it is nothing else.
    """
    loop.average_gradients(tokens)
    return optimizer.step()


def worker_arguments(arguments: Optional[Sequence[str]] = None) -> tuple[dict[str, Any], list[str]]:
    """The options of `isthmus worker` on this program's command line, and the rest of it.

    `isthmus launch` gives them to `worker.command`:

        options, rest = isthmus.worker_arguments()
        loop = isthmus.OuterLoop(model=model, **options)

    `--resume` is not among what OuterLoop takes: "resume" is True in `options` then, and a program that can resume puts
    its state dict there, or takes it out.
    """
    parser = argparse.ArgumentParser(description="a worker of a run of isthmus", allow_abbrev=False)
    parser.add_argument("--config", required=True, help="experiment in YAML")
    parser.add_argument("--name", required=True, help="of this worker, unique in the run")
    parser.add_argument("--coordinator", help="HOST:PORT")
    parser.add_argument("--site", default="", help="whose settings apply")
    parser.add_argument("--listen", help="ADDRESS:PORT for peers, or none")
    parser.add_argument("--advertise", help="HOST:PORT that peers dial")
    parser.add_argument("--certs", help="folder of certificates")
    parser.add_argument("--insecure", action="store_true", help="no certificates")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--quiet", action="store_true", help="no progress line")
    found, rest = parser.parse_known_args(arguments)
    options = vars(found)
    # Of the progress line, which there is none of here; what is said otherwise goes to the worker's log.
    options.pop("quiet")
    if not options["resume"]:
        options["resume"] = None
    return options, rest


def initial_parameters(config: Any, model: torch.nn.Module, settings: Sequence[str] = (), name: str = "") -> None:
    """Gives a model that is the config's own (section `model`) the values that `isthmus worker` begins with.

    Raises:
        ConfigError: names or shapes are not those of the config's model.
    """
    experiment = _native.load(str(config), list(settings), name, "")
    parameters = whole_parameters_of(model)
    for embedding in ("model.embed_tokens.weight", "transformer.wte.weight"):
        if embedding not in parameters:
            continue
        vocabulary = parameters[embedding].shape[0]
        tensors, fragments = _native.model_table(experiment, vocabulary)
        if {n: tuple(shape) for n, shape, _ in tensors} != {n: tuple(p.shape) for n, p in parameters.items()}:
            break
        values = torch.zeros(fragments[-1][0] + fragments[-1][1])
        _native.initial_parameters(experiment, vocabulary, values)
        with torch.no_grad():
            for name_, shape, begin in tensors:
                size = torch.Size(shape).numel()
                parameters[name_].copy_(values[begin : begin + size].view(shape))
        return
    raise ConfigError("names or shapes of the model's parameters are not those of the config's section model")


def placement_of(experiment: Any, parameters: Mapping[str, torch.Tensor], fragments: Any = None) -> Placement:
    """Where these parameters lie in a run of that experiment."""
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}  # of a sharded one: of all of it
    return place(shapes, experiment.num_fragments, fragments, lambda size: _native.model_table(experiment, size))


def _alone(work: Callable[[], Result]) -> Result:
    return work()


def _ranks_of(group: Any) -> Any:
    from . import _site  # torch.distributed is not part of every PyTorch

    return _site.Ranks(group)


def _storage_of(model: torch.nn.Module, parameters: Mapping[str, Any], placement: Placement, ranks: Any) -> Storage:
    sharded = [name for name, parameter in parameters.items() if hasattr(parameter, "to_local")]
    if not sharded:
        return Storage(model, parameters, placement, ranks is None or ranks.is_first)
    if ranks is None:
        raise ConfigError(
            f"parameter {sharded[0]} is sharded over several ranks; expected their process group as `group`, with all of "
            "them making the loop"
        )
    from ._sharded import ShardedStorage

    return ShardedStorage(model, parameters, placement, ranks.group)


def experiment_of(
    config: Any,
    name: str,
    site: str,
    settings: Union[Mapping[str, Any], Sequence[str]],
    addresses: Mapping[str, Optional[str]],
    insecure: bool,
) -> Any:
    """The config with what a program says over it; `addresses` are keys of section `network`."""
    assignments = _assignments(settings)
    assignments += [f'network.{key}="{value}"' for key, value in addresses.items() if value]
    if insecure:
        assignments.append("network.insecure=true")
    return _native.load(str(config), assignments, name, site)


def _bytes_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def _assignments(settings: Union[Mapping[str, Any], Sequence[str]]) -> list[str]:
    if not isinstance(settings, Mapping):
        return list(settings)
    written = {True: "true", False: "false"}
    return [f"{key}={written[v] if isinstance(v, bool) else v}" for key, v in settings.items()]


def _restore_master(storage: Storage, state: Optional[Mapping[str, Any]]) -> None:
    """The fp32 values of parameters in another format."""
    if state is None:
        return
    if state is True or not hasattr(state, "get") or not isinstance(state.get("replica"), torch.Tensor):
        raise ConfigError("resume is not what OuterLoop.state_dict() gave; load it and pass it")
    if state.get("version") != STATE_VERSION:
        raise _native.DataError(f"resume: the state dict has version {state.get('version')}; expected {STATE_VERSION}")
    if storage.direct or not storage.whole:
        return
    values = state.get("values")
    if not isinstance(values, torch.Tensor) or values.dtype != torch.float32 or values.numel() != storage.size:
        raise _native.DataError("resume: the state dict is of a model with other names, shapes or fragments")
    storage.values.copy_(values)


def _leave(native: Any) -> None:
    """Of a loop that nobody has closed, at the end of the program or of the loop."""
    error = getattr(sys, "last_value", None)
    native.close("" if error is None else f"{type(error).__name__}: {error}")

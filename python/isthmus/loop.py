"""The outer loop around a training loop of PyTorch."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, TypeVar, Union

import torch

from . import _native
from ._end import close, close_forgotten
from ._experiment import experiment_of, placement_of
from ._moments import Keys, Optimizers, moments_of
from ._native import ConfigError, ModelFolder
from ._placement import Placement
from ._pretrained import saver_of, write_folder
from ._signals import LeaveOnSigterm
from ._state import STATE_VERSION, bytes_tensor, restore_master
from ._storage import Storage, alone, buffers_of, parameters_of

Result = TypeVar("Result")


class OuterLoop:
    """One replica of a run.

    The constructor joins the run, waits for the other replicas, and returns when the first step may begin. It moves the
    trained parameters of `model` into one flat memory and keeps the `torch.nn.Parameter` objects. So create the loop
    after `model.to()` and after parameters are tied, frozen or loaded; the optimizer may be created before or after it.
    Frozen parameters and buffers, other than those that `buffers` names, are not shared between replicas.

    Args:
        config: the experiment in YAML, the same for all (sections `outer`, `network`, `run`).
        model: the module to train; it may be wrapped by `torch.compile` or DistributedDataParallel.
        name: name of this replica, unique in the run.
        coordinator: HOST:PORT, overrides `network.coordinator`.
        site: use the settings of this site; default: the site that the name belongs to.
        listen, advertise, certs, insecure: as for `isthmus worker`.
        settings: override the config's, for example {"outer.sync_every": 60}.
        fragments: `outer.num_fragments` lists of patterns (`model.layers.0.*`), with each parameter in exactly one. By
            default the numbered layers are strided over all fragments but the last, which gets the rest.
        buffers: patterns of the module's buffers (`*.running_mean`, `*.running_var`) that change in training and that all
            replicas are to share: statistics, or the bias of a router of experts. Their outer step is the mean over the
            replicas. They are of fp32 or bf16.
        optimizer: the inner optimizer, or several, for replicas that join later: they copy the moments of one that is in the
            run, and of this replica if it is asked (`join.inner_state: donor`). Give it on all replicas or on none. None:
            the optimizer of a replica that joins later begins without moments.
        moment_keys: names of the first and the second moment in the optimizer's state (the second may be None), unless it
            is an Adam, AdamW, RAdam, Muon or SGD.
        resume: the result of `state_dict` in the earlier run. All replicas resume. If the state of one is of another
            step than the run continues from, it copies that of the others.
        tokens: tokens per inner step, over all ranks of the site: the weight of this replica's contributions. Default:
            `inner.batch` * `data.seq_len` of the config.
        quiet: print nothing to standard output.
        group: process group of this site's ranks, which train as one replica (DistributedDataParallel, or FSDP2's
            `fully_shard`). All ranks create the loop and make the same calls. Only the first is in the run and passes
            its state to the others; losses, tokens and evaluations of the others are ignored. Initialise
            `torch.distributed` first. None: this process alone.
        leave_on_sigterm: on SIGTERM leave the run in order, as `isthmus worker` does: `after_step` returns False and
            `leaves` is set. Replaces the program's handler of SIGTERM until the loop is closed. A program with its own
            handler calls `request_leave` there instead.

    Raises:
        ConfigError: the config, an argument or the model cannot be used, or the coordinator refuses this replica.
        DataError: a file or the state to resume from cannot be used.
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
        listen: Optional[str] = None,
        advertise: Optional[str] = None,
        certs: Optional[str] = None,
        insecure: bool = False,
        settings: Union[Mapping[str, Any], Sequence[str]] = (),
        fragments: Optional[Sequence[Sequence[str]]] = None,
        buffers: Sequence[str] = (),
        optimizer: Optional[Optimizers] = None,
        moment_keys: Optional[Keys] = None,
        resume: Optional[Mapping[str, Any]] = None,
        tokens: Optional[int] = None,
        quiet: bool = False,
        group: Any = None,
        leave_on_sigterm: bool = False,
    ) -> None:
        addresses = {"coordinator": coordinator, "listen": listen, "advertise": advertise, "certs": certs}
        self.experiment = experiment_of(config, name, site, settings, addresses, insecure)
        self.name = name
        self.tokens = tokens or self.experiment.batch * self.experiment.sequence_length
        self.samples: Optional[int] = None
        """samples of `next_samples` in a step, over all ranks of the site, oldest first; None: all that it returned"""
        self._model = model
        self._borrowed = False
        ranks = self._ranks = None if group is None else _ranks_of(group)
        together = ranks.agree if ranks else _alone
        averaged = together(lambda: buffers_of(model, buffers))
        parameters = together(lambda: {**parameters_of(model), **averaged})
        self._together = together
        layout = ranks.layout(parameters) if ranks else None
        whole = layout.parameters if layout else parameters
        names = layout.buffers if layout else averaged
        self.placement = together(lambda: placement_of(self.experiment, whole, names, fragments))
        storage = ranks.storage if ranks else alone
        self._storage: Storage = together(lambda: storage(model, layout or parameters, self.placement))
        together(lambda: restore_master(self._storage, resume))
        self._moments = together(
            lambda: moments_of(optimizer, moment_keys, self._storage, self.experiment.joins_with_moments)
        )
        resumes = ranks.first_says(resume is not None) if ranks else resume is not None
        if resumes and not self._storage.direct and (self._storage.whole or self._storage.sharded):
            # If the master and the model differ, the model is right.
            self._storage.fetch(0, self._storage.size)
        self.is_first = ranks is None or ranks.is_first
        """whether this process is in the run: alone, or as the first rank of its site"""
        self._signals = LeaveOnSigterm() if leave_on_sigterm else None
        try:
            self._native = self._join_as_site(ranks, resume, quiet) if ranks else self._join(resume, quiet)
        except BaseException:
            if self._signals:
                self._signals.restore()
            raise
        if self._signals:
            self._signals.in_run(self._native.request_leave)
        if self.synchronous:
            self._storage.agree_on_buffers()
        self._end = weakref.finalize(self, close_forgotten, self._native, self._signals)

    def _join(self, resume: Optional[Mapping[str, Any]], quiet: bool, moves: Any = None, moments: Any = None) -> Any:
        fetch, store = moves.both if moves else self._storage.moves
        return _native.Replica.join(
            experiment=self.experiment,
            name=self.name,
            tensors=[(n, list(shape), begin) for n, shape, begin in self.placement.tensors],
            fragments=self.placement.fragments,
            averaged=self.placement.averaged,
            values=self._storage.values,
            fetch=fetch,
            store=store,
            moments=moments if moves else self._moments,
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
            return _site.OtherRank(ranks, self._storage, self._moments)
        first = _site.FirstRank(ranks, self._storage, self._moments)
        first.join(lambda moves, moments: self._join(resume, quiet, moves, moments))
        return first

    # ---- training ----

    def after_step(self, loss: Union[float, torch.Tensor, None] = None, tokens: Optional[int] = None) -> bool:
        """Call it after each inner step: once per `optimizer.step()`, also with gradient accumulation.

        Sends and applies what is due. Returns at once, unless a result that is due has not arrived, the run is paused
        or rounds do not commit; then it waits, as `isthmus worker` does.

        Args:
            loss: loss of the step, in nats per token, for metrics and `isthmus top`. A tensor on a GPU is waited for.
            tokens: tokens of this step, if they differ from `tokens` of the loop.

        Returns:
            Whether to make another step. False: the run has made its last step or was stopped, or this replica was
            asked to leave (`stopped`, `leaves`); then call `close()`.

        Raises:
            ConfigError: parameters were added, frozen or moved after the loop was made; a warm-up step was made without
                `synchronous_step`; or the run is over.
            NetworkError: the run cannot continue.
            DivergenceError: an outer gradient is not finite.
            KeyboardInterrupt, and other exceptions of signal handlers, while it waits.
        """
        self._check_own()
        native = self._native
        if native.is_due:
            self._storage.check()
        if isinstance(loss, torch.Tensor):
            loss = loss.item() if self.is_first else None
        return native.after_step(loss, self.tokens if tokens is None else tokens, self.samples)

    @property
    def synchronous(self) -> bool:
        """Whether the next step belongs to the synchronous warm-up (`outer.warmup_steps`)."""
        return self._native.synchronous

    def average_gradients(self, tokens: Optional[int] = None) -> None:
        """Replaces the gradients with their mean over all replicas, if the next step belongs to the warm-up.

        `synchronous_step` calls it. Call it yourself if something, such as clipping, comes between the gradients and
        the optimizer. All replicas must then make the same inner step: same optimizer, same settings, same hardware.
        """
        self._check_own()
        if not self.synchronous:
            return
        self._native.check() if hasattr(self._native, "check") else self._storage.check()
        gradients = self._storage.gather_gradients()
        self._native.average_gradients(gradients, self.tokens if tokens is None else tokens, self.samples)
        self._storage.scatter_gradients(gradients)

    def next_samples(self, count: int, size: int) -> list[int]:
        """Indices of the next `count` samples to train on, in a data set of `size` samples that all replicas have.

        Over all replicas each epoch has each sample once, in an order of its own. If a replica is lost, the others get
        the samples that it has not contributed, and a resumed run continues where it stopped. `isthmus data ledger`
        shows which samples are in the global parameters. On a site with several ranks all ranks call it, and get the
        same indices to divide among them. See `Batches`.
        """
        return self._native.next_samples(count, size)

    # ---- the global parameters ----

    @contextlib.contextmanager
    def global_parameters(self) -> Iterator[torch.nn.Module]:
        """Inside the `with` block the model has the global parameters, to be evaluated, sampled or saved.

        Needs memory for one copy of the parameters on the host, and for one where they are.
        """
        own = self._lend()
        try:
            yield self._model
        finally:
            self._take_back(own)

    def _lend(self) -> list[torch.Tensor]:
        """Puts the global parameters into the model. Returns the model's own values, for `_take_back`."""
        self._check_own()
        values = self._storage.room()
        self._native.copy_global(values)
        own = self._storage.keep()
        self._borrowed = True
        try:
            self._storage.put(values)
        except BaseException:
            self._take_back(own)
            raise
        return own

    def _take_back(self, own: Optional[list[torch.Tensor]]) -> None:
        """None: the model keeps the values that it has."""
        if own is not None:
            self._storage.put_back(own)
        self._borrowed = False

    def save_pretrained(self, folder: Union[str, os.PathLike[str]], *, replace: bool = False) -> None:
        """Writes the global parameters to a folder by the module's own `save_pretrained` (Hugging Face).

        The folder appears complete or not at all, also if the process is killed. On a site with several ranks all ranks
        call it and the first one writes; each replica needs its own folder.

        Args:
            folder: new or empty.
            replace: replace the model of an earlier call, if nothing was added to its folder.

        Raises:
            ConfigError: the model has no `save_pretrained`, or the folder has files.
            DataError: the folder cannot be written; it is then unchanged.
        """
        saver = self._together(lambda: saver_of(self._model))
        target = self._together(lambda: ModelFolder(folder, replace) if self.is_first else None)
        with contextlib.nullcontext() if self._borrowed else self.global_parameters():
            state = {"state_dict": self._storage.whole_state(saver)} if self._storage.sharded else {}
            model = f"run {self.experiment.run}, step {self.step}, global parameters"
            self._together(lambda: write_folder(target, lambda to: saver.save_pretrained(to, **state), model))

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
        """Hash of the global parameters and their rounds: equal on all replicas, 64 hex digits.

        On a site with several ranks, only the first one has it until the run has ended.
        """
        return self._native.global_hash()

    # ---- state ----

    @property
    def step(self) -> int:
        """The last agreed step."""
        return self._native.step

    @property
    def steps(self) -> int:
        """Total steps of the run (`run.steps`)."""
        return self.experiment.steps

    @property
    def rank(self) -> tuple[int, int]:
        """Index of this replica among the current replicas, and their number; for sharing an evaluation."""
        return self._native.rank

    @property
    def site_rank(self) -> tuple[int, int]:
        """Index of this process among the ranks of its site, and their number."""
        return self._ranks.place if self._ranks else (0, 1)

    @property
    def running(self) -> bool:
        """Whether another step is to be made."""
        return self._native.running

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped, for all replicas, before its last step."""
        return self._native.stopped

    @property
    def leaves(self) -> str:
        """Why this replica was asked to leave; empty if it was not."""
        return self._native.leaves

    @property
    def frozen(self) -> bool:
        """Whether rounds do not commit at present, so that steps are local and `step` does not advance."""
        return self._native.frozen

    @property
    def stats(self) -> dict[str, Union[int, float]]:
        """Rounds, waits (seconds) and bytes so far; `states_taken` counts copies of another replica's state."""
        return self._native.stats()

    @property
    def wants_evaluation(self) -> bool:
        """Whether an evaluation should be reported: `run.eval_every` falls on this step, or the run is over."""
        return self._native.wants_evaluation

    @property
    def wants_checkpoint(self) -> bool:
        """Whether to save: `run.checkpoint_every` falls on this step, an operator asked for it, or the run is over."""
        return self._native.wants_checkpoint

    def report_evaluation(self, nats: float, tokens: int) -> None:
        """Reports the evaluation of this step's global parameters on this replica's share of the held-out data.

        `nats` is the sum of the loss over `tokens` tokens. The coordinator adds the shares of all replicas and writes
        the mean.
        """
        self._native.report_evaluation(float(nats), int(tokens))

    # ---- resuming ----

    def state_dict(self) -> dict[str, Any]:
        """State beyond the model: global parameters, momentum, residuals, rounds in flight. Tensors and numbers.

        Save it together with the model's and the optimizer's state, at the same step on all replicas
        (`wants_checkpoint`). Waits for the results of rounds in flight, without applying them. On a site with several
        ranks all ranks call it, and all resume from the first one's result.

        Raises:
            NetworkError: rounds do not commit at present; try again after a step.
        """
        self._check_own()
        out: dict[str, Any] = {
            "version": STATE_VERSION,
            "step": self.step,
            "replica": bytes_tensor(self._native.save()),
        }
        if not self._storage.direct and self._storage.whole:
            out["values"] = self._storage.values.clone()
        return out

    # ---- the end ----

    def request_stop(self, reason: str) -> None:
        """Asks all replicas to stop at a common step, after which `after_step` returns False."""
        self._native.request_stop(reason)

    def request_leave(self, reason: str) -> None:
        """Asks this replica to leave the run; the others continue. Signal handlers and other threads may call it.

        `after_step` returns False once none of this replica's rounds is in flight, within 100 steps, and at once while
        the run is paused; then `leaves` is the reason.
        """
        self._native.request_leave(reason)

    def close(self) -> None:
        """Ends this replica's part. If the run is over, sends the final report and waits for those of the others.

        Otherwise leaves the run. Called automatically at the end of a `with` block and of the program.

        Raises:
            DivergenceError: the replicas ended with different global parameters.
        """
        self._leave_as("")

    def __enter__(self) -> OuterLoop:
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        self._leave_as("" if kind is None else f"{kind.__name__}: {error}")

    def _leave_as(self, why: str) -> None:
        self._end.detach()
        close(self._native, self._signals, why)

    def _check_own(self) -> None:
        if self._borrowed:
            raise ConfigError("the model has the global parameters at present: leave global_parameters() first")


def synchronous_step(loop: OuterLoop, optimizer: Any, tokens: Optional[int] = None) -> Any:
    """Averages the gradients over all replicas during the synchronous warm-up, then calls `optimizer.step()`.

    Use it instead of `optimizer.step()` if `outer.warmup_steps` is above 0; after the warm-up both are the same.
    """
    loop.average_gradients(tokens)
    return optimizer.step()


def _alone(work: Callable[[], Result]) -> Result:
    return work()


def _ranks_of(group: Any) -> Any:
    from . import _site  # torch.distributed is not part of every PyTorch

    return _site.Ranks(group)

"""The experiment of a program: its config and arguments, the placement of its parameters, their initial values."""

from __future__ import annotations

import argparse
from typing import Any, Collection, Mapping, Optional, Sequence, Union

import torch

from . import _native
from ._native import ConfigError
from ._placement import Placement, place, with_buffers
from ._storage import whole_parameters_of


def worker_arguments(arguments: Optional[Sequence[str]] = None) -> tuple[dict[str, Any], list[str]]:
    """Parses the options of `isthmus worker` from this program's command line; returns them and the other arguments.

    `isthmus launch` passes them to `worker.command`:

        options, rest = isthmus.worker_arguments()
        loop = isthmus.OuterLoop(model=model, **options)

    With `--resume`, "resume" is True in `options`. OuterLoop does not accept True: replace it with a state dict, or
    remove it.
    """
    parser = argparse.ArgumentParser(description="a worker of a run of isthmus", allow_abbrev=False)
    parser.add_argument("--config", required=True, help="experiment in YAML")
    parser.add_argument("--name", required=True, help="name of this worker, unique in the run")
    parser.add_argument("--coordinator", help="HOST:PORT")
    parser.add_argument("--site", default="", help="use the settings of this site")
    parser.add_argument("--listen", help="ADDRESS:PORT for peers, or none")
    parser.add_argument("--advertise", help="HOST:PORT that peers dial")
    parser.add_argument("--certs", help="folder of certificates")
    parser.add_argument("--insecure", action="store_true", help="no certificates")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--resume", action="store_true", help="resume from the newest checkpoint")
    parser.add_argument("--quiet", action="store_true", help="no progress line")
    found, rest = parser.parse_known_args(arguments)
    options = vars(found)
    # --quiet only concerns the progress line, which does not exist here.
    options.pop("quiet")
    if not options["resume"]:
        options["resume"] = None
    return options, rest


def experiment_of(
    config: Any,
    name: str,
    site: str,
    settings: Union[Mapping[str, Any], Sequence[str]],
    addresses: Mapping[str, Optional[str]],
    insecure: bool,
) -> Any:
    """The config with a program's overrides; `addresses` are keys of section `network`."""
    assignments = _assignments(settings)
    assignments += [f'network.{key}="{value}"' for key, value in addresses.items() if value]
    if insecure:
        assignments.append("network.insecure=true")
    return _native.load(str(config), assignments, name, site)


def _assignments(settings: Union[Mapping[str, Any], Sequence[str]]) -> list[str]:
    if not isinstance(settings, Mapping):
        return list(settings)
    written = {True: "true", False: "false"}
    return [f"{key}={written[v] if isinstance(v, bool) else v}" for key, v in settings.items()]


def initial_parameters(config: Any, model: torch.nn.Module, settings: Sequence[str] = (), name: str = "") -> None:
    """Gives the config's own model (section `model`) the initial values of `isthmus worker`.

    Raises:
        ConfigError: names or shapes differ from those of the config's model.
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
    raise ConfigError("names or shapes of the model's parameters differ from those of the config's section model")


def placement_of(
    experiment: Any, tensors: Mapping[str, torch.Tensor], buffers: Collection[str], fragments: Any = None
) -> Placement:
    """The placement of these tensors in a run of that experiment; `buffers`: names of those to average."""
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}  # of the whole tensor, also if it is sharded
    parameters = place(
        {name: shape for name, shape in shapes.items() if name not in buffers},
        experiment.num_fragments,
        fragments,
        lambda size: _native.model_table(experiment, size),
    )
    return with_buffers(parameters, {name: shape for name, shape in shapes.items() if name in buffers})

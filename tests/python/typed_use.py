"""A use of the package for type checkers; checked by mypy, never run."""

from typing import Any, Iterable

import torch

import isthmus


def train(model: torch.nn.Module, batches: Iterable[torch.Tensor], options: dict[str, Any]) -> str:
    optimizer = torch.optim.SGD(model.parameters())
    try:
        with isthmus.OuterLoop("experiment.yaml", model, name="eu", settings={"outer.sync_every": 60}) as loop:
            for batch in batches:
                loss: torch.Tensor = model(batch)
                loss.backward()
                isthmus.synchronous_step(loop, optimizer)
                running: bool = loop.after_step(loss)
                if not running:
                    break
            sampler: Iterable[list[int]] = isthmus.Batches(loop, 1000, batch=8)
            loop.samples = len(loop.next_samples(8, 1000)) + len(next(iter(sampler)))
            index, replicas = loop.rank
            values: dict[str, torch.Tensor] = loop.global_values()
            print(index + replicas, len(values), loop.step + 1)
            loop.save_pretrained("model", replace=True)
            return loop.global_hash
    except isthmus.ConfigError as error:
        base: isthmus.Error = error
        return str(base)


def study(values: torch.Tensor) -> float:
    return isthmus.codecs.error(values, "4bit") + isthmus.codecs.bits("4bit")

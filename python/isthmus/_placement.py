"""Places of a module's parameters in one flat buffer, and the fragments of that buffer."""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass
from typing import Callable, Mapping, Optional, Sequence, Tuple

from ._native import ConfigError

ALIGNMENT = 64  # elements, so that fragments begin at a cache line
_WRAPPERS = ("_orig_mod.", "module.", "_checkpoint_wrapped_module.")

Shape = Tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Tensors in buffer order as (name, shape, first element), fragments as (first element, elements)."""

    tensors: list[tuple[str, Shape, int]]
    fragments: list[tuple[int, int]]
    averaged: int = 0
    """the last fragments, which hold averaged buffers of the module"""

    @property
    def size(self) -> int:
        """Elements of the flat buffer, padding included."""
        begin, elements = self.fragments[-1]
        return begin + elements


def plain_name(name: str) -> str:
    """A parameter's name without the parts that `torch.compile`, DDP and checkpointing add."""
    for wrapper in _WRAPPERS:
        if name.startswith(wrapper):
            return plain_name(name[len(wrapper) :])
        name = name.replace("." + wrapper, ".")
    return name


def place(
    shapes: Mapping[str, Shape],
    count: int,
    groups: Optional[Sequence[Sequence[str]]],
    table_of: Callable[[int], tuple],
) -> Placement:
    """The placement of these tensors in `count` fragments.

    `groups` are lists of patterns, one list for each fragment. Without them, the config's own model is placed as in
    `isthmus worker` (`table_of` a vocabulary), so that both can be in one run; other models are cut by their layers
    (see `by_layers`).
    """
    if groups is not None:
        if len(groups) != count:
            raise ConfigError(
                f"fragments has {len(groups)} lists of patterns, and outer.num_fragments is {count}; expected as many"
            )
        return _stack(shapes, _by_patterns(list(shapes), groups))
    own = _config_model(shapes, table_of)
    if own is not None:
        return own
    layers = by_layers(shapes, count)
    if layers is not None:
        return _stack(shapes, layers)
    return _cut_evenly(shapes, count)


def by_layers(shapes: Mapping[str, Shape], count: int) -> Optional[list[list[str]]]:
    """Layer l in fragment l mod (count - 1), all else in the last one (arXiv 2501.18512, section 3.1).

    The layers are the numbered children of the module with the most parameters in numbered children. None if there are
    fewer than `count` - 1 layers.
    """
    if count == 1:
        return [list(shapes)]
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        place_of = _layer_of(name)
        if place_of is not None:
            sizes[place_of[0]] = sizes.get(place_of[0], 0) + math.prod(shape)
    if not sizes:
        return None
    stack = max(sizes, key=lambda prefix: sizes[prefix])
    numbers = sorted({layer[1] for layer in map(_layer_of, shapes) if layer is not None and layer[0] == stack})
    if len(numbers) < count - 1:
        return None
    fragments: list[list[str]] = [[] for _ in range(count)]
    for name in shapes:
        layer = _layer_of(name)
        if layer is not None and layer[0] == stack:
            fragments[numbers.index(layer[1]) % (count - 1)].append(name)
        else:
            fragments[count - 1].append(name)
    return fragments if fragments[-1] else None


def _layer_of(name: str) -> Optional[tuple[str, int]]:
    """The module and number of the outermost numbered child that a parameter is in."""
    parts = name.split(".")
    for i, part in enumerate(parts[:-1]):
        if part.isdigit():
            return ".".join(parts[:i]), int(part)
    return None


def _by_patterns(names: list[str], groups: Sequence[Sequence[str]]) -> list[list[str]]:
    fragments: list[list[str]] = [[] for _ in groups]
    for name in names:
        found = [i for i, patterns in enumerate(groups) if any(fnmatch.fnmatchcase(name, p) for p in patterns)]
        if len(found) != 1:
            where = f"patterns of fragments {', '.join(map(str, found))}" if found else "no pattern"
            raise ConfigError(f"parameter {name} matches {where} in fragments; expected exactly one")
        fragments[found[0]].append(name)
    for i, fragment in enumerate(fragments):
        if not fragment:
            raise ConfigError(f"no parameter matches the patterns of fragment {i}: {list(groups[i])}")
    return fragments


def with_buffers(parameters: Placement, shapes: Mapping[str, Shape]) -> Placement:
    """Adds a fragment for buffers of the module, which the outer step only averages."""
    if not shapes:
        return parameters
    begin = end = -(-parameters.size // ALIGNMENT) * ALIGNMENT
    tensors = list(parameters.tensors)
    for name, shape in shapes.items():
        # Apart, so that no block of a codec has values of two buffers: their magnitudes differ.
        end = -(-end // ALIGNMENT) * ALIGNMENT
        tensors.append((name, shape, end))
        end += math.prod(shape)
    return Placement(tensors, [*parameters.fragments, (begin, end - begin)], averaged=1)


def _matrices_first(shapes: Mapping[str, Shape], names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: len(shapes[name]) < 2)


def _stack(shapes: Mapping[str, Shape], groups: Sequence[Sequence[str]]) -> Placement:
    tensors, fragments, end = [], [], 0
    for names in groups:
        end = begin = -(-end // ALIGNMENT) * ALIGNMENT
        for name in _matrices_first(shapes, names):
            tensors.append((name, tuple(shapes[name]), end))
            end += math.prod(shapes[name])
        fragments.append((begin, end - begin))
    return Placement(tensors, fragments)


def _cut_evenly(shapes: Mapping[str, Shape], count: int) -> Placement:
    whole = _stack(shapes, [list(shapes)])
    size = whole.size
    if count > size:
        raise ConfigError(f"outer.num_fragments is {count} and the model has {size} parameters; expected fewer")
    ends = [p * (size // count) + min(p, size % count) for p in range(count + 1)]
    return Placement(whole.tensors, [(a, b - a) for a, b in zip(ends, ends[1:])])


def _config_model(shapes: Mapping[str, Shape], table_of: Callable[[int], tuple]) -> Optional[Placement]:
    for name in ("model.embed_tokens.weight", "transformer.wte.weight"):
        if name in shapes:
            tensors, fragments = table_of(shapes[name][0])
            table = Placement([(n, tuple(shape), begin) for n, shape, begin in tensors], list(fragments))
            if {n: shape for n, shape, _ in table.tensors} == {n: tuple(s) for n, s in shapes.items()}:
                return table
    return None

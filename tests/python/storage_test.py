"""Moving the parameters of a module into one buffer, without a run."""

import json
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent / "workers"))
import toy  # noqa: E402

import isthmus  # noqa: E402
from isthmus import _native  # noqa: E402
from isthmus._experiment import placement_of as placement_of_experiment  # noqa: E402
from isthmus._placement import ALIGNMENT, place, plain_name  # noqa: E402
from isthmus._storage import Storage, parameters_of  # noqa: E402


def placement_of(parameters, count=3, groups=None):
    return place({name: tuple(p.shape) for name, p in parameters.items()}, count, groups, None)


def stored(model, count=3):
    parameters = parameters_of(model)
    return Storage(model, parameters, placement_of(parameters, count))


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(4))
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


def train(model, steps, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        ids = torch.arange(8) % 11
        torch.nn.functional.cross_entropy(model(ids), (ids + step) % 11).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: torch.compile(m, backend="eager")])
def test_training_goes_on_as_without(wrap):
    torch.manual_seed(3)
    model = Tied()
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    wrapped = wrap(model)
    storage = stored(wrapped)
    assert {n: v.tolist() for n, v in model.state_dict().items()} == {n: v.tolist() for n, v in expected.items()}
    after = train(wrapped, 5, optimizer)

    torch.manual_seed(3)
    plain = Tied()
    reference = train(plain, 5)
    for name, value in reference.items():
        assert torch.equal(after[plain_name(name) if name in after else "_orig_mod." + name], value), name
    storage.check()
    assert model.head.weight is model.embed.weight
    for name, shape, begin in placement_of(parameters_of(model)).tensors:
        parameter = model.get_parameter(name)
        assert torch.equal(storage.values[begin : begin + parameter.numel()].view(shape), parameter)


def test_parameters_over_one_memory_are_one():
    model = Tied()
    model.other = torch.nn.Parameter(torch.zeros(11, 6))
    model.other.data = model.embed.weight.data
    storage = stored(model)
    storage.check()
    with torch.no_grad():
        model.embed.weight.fill_(4)
    assert torch.equal(model.other, model.embed.weight)


def test_a_state_dict_can_be_loaded_and_gradients_accumulate():
    model = Tied()
    storage = stored(model)
    other = Tied().state_dict()
    model.load_state_dict(other)
    storage.check()
    assert torch.equal(model.embed.weight, other["embed.weight"])
    for _ in range(2):
        model(torch.arange(3)).sum().backward()
    assert model.embed.weight.grad is not None
    model.load_state_dict(other, assign=True)
    with pytest.raises(isthmus.ConfigError, match="replaced|no longer lies"):
        storage.check()


def test_layers_are_strided_and_fragments_aligned():
    model = Tied()
    place_ = placement_of(parameters_of(model))
    fragment_of = {}
    for name, _, begin in place_.tensors:
        (fragment_of[name],) = [p for p, (first, size) in enumerate(place_.fragments) if first <= begin < first + size]
    assert {fragment_of[f"layers.{i}.weight"] for i in (0, 2)} == {0}
    assert {fragment_of[f"layers.{i}.bias"] for i in (1, 3)} == {1}
    assert fragment_of["embed.weight"] == 2
    assert all(begin % ALIGNMENT == 0 for begin, _ in place_.fragments)


def test_more_fragments_than_layers_are_cut_evenly():
    parameters = parameters_of(Tied())
    place_ = placement_of(parameters, 9)
    assert sum(size for _, size in place_.fragments) == sum(p.numel() for p in parameters.values())
    sizes = [size for _, size in place_.fragments]
    assert max(sizes) - min(sizes) <= 1


def test_a_users_own_fragments():
    parameters = parameters_of(Tied())
    place_ = placement_of(parameters, 2, [["layers.*"], ["embed.*"]])
    assert place_.tensors[-1][0] == "embed.weight"
    with pytest.raises(isthmus.ConfigError, match="embed.weight matches no pattern"):
        placement_of(parameters, 2, [["layers.0.*"], ["layers.[123].*"]])
    with pytest.raises(isthmus.ConfigError, match="matches patterns of fragments 0, 1"):
        placement_of(parameters, 2, [["*"], ["embed.*"]])
    with pytest.raises(isthmus.ConfigError, match="2 lists of patterns, and outer.num_fragments is 3"):
        placement_of(parameters, 3, [["layers.*"], ["embed.*"]])


def test_frozen_parameters_stay_out_and_others_are_refused():
    model = Tied()
    model.layers[0].weight.requires_grad_(False)
    storage = stored(model)
    storage.check()
    model.layers[0].weight.requires_grad_(True)
    with pytest.raises(isthmus.ConfigError, match="layers.0.weight was unfrozen"):
        storage.check()
    with pytest.raises(isthmus.ConfigError, match="float64"):
        parameters_of(Tied().double())


def test_bf16_keeps_what_outer_steps_gave_below_its_precision():
    model = toy.Model(dtype=torch.bfloat16)
    storage = stored(model)
    size = storage.values.numel()
    assert not storage.direct and model.head.weight.dtype == torch.bfloat16
    master = storage.values.clone()
    master[:8] += 1e-6  # below the resolution of bf16
    storage.values.copy_(master)
    storage.store(0, size)
    storage.fetch(0, size)
    assert torch.equal(storage.values, master)
    with torch.no_grad():
        model.head.weight[0, 0] += 1
    storage.fetch(0, size)
    changed = storage.values != master
    assert changed.sum() == 1 and storage.values[changed].item() == model.head.weight[0, 0].item()


def test_names_are_those_without_wrappers():
    assert plain_name("_orig_mod.module.layers.0.weight") == "layers.0.weight"
    assert plain_name("layers.0._checkpoint_wrapped_module.weight") == "layers.0.weight"


def module_of(tensors):
    """A module with parameters that have these names and shapes."""
    model = torch.nn.Module()
    for name, shape in tensors:
        owner = model
        *path, last = name.split(".")
        for child in path:
            if child not in dict(owner.named_children()):
                owner.add_module(child, torch.nn.Module())
            owner = getattr(owner, child)
        owner.register_parameter(last, torch.nn.Parameter(torch.zeros(shape)))
    return model


@pytest.mark.parametrize(
    "settings", [{"qk_norm": True}, {"qk_norm": False, "tie_embeddings": True}, {"architecture": "gpt2"}]
)
@pytest.mark.parametrize("fragments", [1, 3, 40])
def test_a_model_of_the_config_lies_as_the_cpp_worker_has_it(tmp_path, settings, fragments):
    config = tmp_path / "experiment.yaml"
    model = {"layers": 5, "dim": 32, "heads": 4, **settings}
    config.write_text(json.dumps({"model": model, "outer": {"num_fragments": fragments, "chunk_elements": 1024}}))
    experiment = _native.load(str(config), [], "eu", "")
    tensors, ranges = _native.model_table(experiment, 96)
    # In another order than the buffer, like the norms of Hugging Face's modules.
    mine = module_of(sorted((name, shape) for name, shape, _ in tensors))
    placement = placement_of_experiment(experiment, parameters_of(mine), ())
    assert placement.tensors == [(name, tuple(shape), begin) for name, shape, begin in tensors]
    assert placement.fragments == ranges
    isthmus.initial_parameters(config, mine)
    norms = [p for n, p in mine.named_parameters() if n.endswith(("norm.weight", "ln_1.weight"))]
    assert norms and all(torch.equal(p, torch.ones_like(p)) for p in norms)
    with pytest.raises(isthmus.ConfigError, match="section model"):
        isthmus.initial_parameters(config, toy.Model())


def test_what_hides_or_splits_parameters_is_refused(tmp_path):
    from shards import fully_shard
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(isthmus.ConfigError, match="wrapped by FullyShardedDataParallel.*expected fully_shard"):
            parameters_of(FullyShardedDataParallel(Tied(), device_id=torch.device("cpu")))
        config = tmp_path / "experiment.yaml"
        config.write_text("outer: {num_fragments: 3}")
        sharded = fully_shard(Tied(), mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        with pytest.raises(isthmus.ConfigError, match="embed.weight is sharded.*expected their process group"):
            isthmus.OuterLoop(config, sharded, name="eu")
        with pytest.raises(isthmus.ConfigError, match="embed.weight is sharded.*expected whole ones"):
            isthmus.Observer(config, sharded, name="watch")
        with pytest.raises(isthmus.ConfigError, match="embed.weight is sharded.*expected whole ones"):
            isthmus.initial_parameters(config, sharded)
    finally:
        torch.distributed.destroy_process_group()

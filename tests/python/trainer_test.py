"""Hugging Face's Trainer: what it evaluates, saves and leaves in the model, how it resumes, and warnings."""

import logging
import types

import pytest
import torch
import trainers
from safetensors.torch import load_file
from trainers import NAMES, assert_same, results_of, write_config

import isthmus


def start(run, name, *arguments):
    modules = ["transformers.trainer", "transformers.models.llama.modeling_llama", "accelerate"]
    trainers.start(run, name, "trainer.py", modules, *arguments)


def train(run, *coordinator, checkpoints=None):
    run.start_coordinator(*coordinator)
    for name in NAMES:
        start(run, name, *(["--load", checkpoints[name]] if checkpoints else []))
    return results_of(run)


def test_the_global_parameters_are_evaluated_saved_and_left_and_a_resumed_run_ends_the_same(run):
    write_config(run)
    whole, (eu, us) = train(run)  # the workers compare at each event
    assert [step for step, _ in eu["evaluated"]] == [8, 16, 24] and set(eu["saved"]) == {13, 24}
    assert eu["evaluated"] == us["evaluated"]
    for step, values in eu["saved"].items():
        assert_same(values, us["saved"][step])
    for one in (eu, us):
        assert_same(one["left"], one["final"])
        assert one["loss"] == one["evaluated"][-1][1]
    assert_same(eu["final"], us["final"])
    for kind in ("saved", "pretrained"):
        assert_same(load_file(run.folder / f"eu.pt-{kind}" / "model.safetensors"), eu["final"])
    own = [
        torch.load(run.folder / "output" / name / "checkpoint-13" / "isthmus.pt", weights_only=True)["own"]
        for name in NAMES
    ]
    assert own[0].keys() == eu["final"].keys()
    assert not any(torch.equal(own[0][name], value) for name, value in own[1].items() if "layernorm" not in name)
    for name in NAMES:
        assert run.log(name).count("have the global parameters") == 1
        assert "isthmus: " not in run.log(name)  # no warning

    checkpoints = {name: run.folder / "output" / name / "checkpoint-13" for name in NAMES}
    resumed, _ = train(run, "--resume", checkpoints=checkpoints)
    assert "from step 13" in run.log("eu")
    assert resumed == whole


def test_two_ranks_evaluate_and_save_the_global_parameters(run):
    write_config(run)
    run.start_coordinator()
    start(run, "eu", "--ranks", 2)
    start(run, "us")
    _, (eu, us) = results_of(run)
    assert [step for step, _ in eu["evaluated"]] == [8, 16, 24]
    assert_same(eu["left"], us["left"])
    assert_same(load_file(run.folder / "eu.pt-saved" / "model.safetensors"), eu["final"])


def test_the_best_checkpoint_stays_in_the_model(run):
    """And a callback after the loop's gets a warning."""
    run.write_config(replicas=1, run={"steps": 16})
    run.start_coordinator()
    arguments = ["--best", "--only-model", "--save-steps", 8, "--count", "all", "--late", "--max-steps", 30]
    start(run, "eu", *arguments)
    _, (eu,) = results_of(run, ["eu"])
    losses = dict(eu["evaluated"])
    assert losses[8] < losses[10] < losses[16], "the held-out sequences differ from the others"
    assert_same(eu["left"], eu["saved"][8])
    assert_same(load_file(run.folder / "eu.pt-pretrained" / "model.safetensors"), eu["final"])
    assert not (run.folder / "output/eu/checkpoint-8/isthmus.pt").exists()
    log = run.log("eu")
    assert "the evaluation at step 10 has the parameters of this replica alone" in log
    assert "the schedule of the learning rate has 30 steps, and run.steps is 16: the run ends before it" in log
    assert "inner.batch" not in log  # the tokens are counted
    assert run.report("eu")["tokens"] == 16 * 8 * 16


def warnings_of(caplog, *, max_steps=40, schedule=40, steps=40, batch=8, count="no", **options):
    from isthmus import _trainers
    from isthmus.huggingface import OuterLoopCallback

    experiment = types.SimpleNamespace(batch=8, sequence_length=16)
    callback = OuterLoopCallback("experiment.yaml", name="eu", **options)
    loop = callback.loop = types.SimpleNamespace(experiment=experiment, steps=steps, step=0, is_first=True, tokens=128)
    arguments = types.SimpleNamespace(
        train_batch_size=batch,
        gradient_accumulation_steps=1,
        world_size=1,
        include_num_input_tokens_seen=count,
    )
    callback._warnings = _trainers.Warnings(loop)
    scheduler = scheduler_of(schedule)
    with caplog.at_level(logging.WARNING):
        callback._take_batch(arguments)
        callback._warnings.compare_steps(max_steps, f"{max_steps} (max_steps or num_train_epochs)", scheduler)
    return [record.getMessage() for record in caplog.records], loop.tokens


def scheduler_of(length):
    import transformers

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)
    return transformers.get_scheduler(*(("linear", optimizer, 4, length) if length else ("constant", optimizer)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, []),
        ({"schedule": None, "max_steps": 100}, []),
        ({"max_steps": 20, "schedule": 20}, ["its step 20 (max_steps or num_train_epochs), and run.steps is 40"]),
        ({"max_steps": 100, "schedule": 100}, ["has 100 steps, and run.steps is 40: the run ends before it"]),
        ({"max_steps": 40, "schedule": 30}, ["has 30 steps, and run.steps is 40: it ends before the run"]),
        ({"batch": 4}, ["batch is 4 sequences (per_device_train_batch_size 4, "]),
        ({"batch": 4, "count": "all"}, []),
        ({"batch": 4, "tokens": 77}, []),
    ],
)
def test_differences_between_the_trainer_and_the_config_are_named(caplog, settings, said):
    found, tokens = warnings_of(caplog, **settings)
    assert len(found) == len(said) and all(part in text for part, text in zip(said, found)), found
    assert tokens == 128 if "tokens" in settings else settings.get("batch", 8) * 16


def test_a_replicas_own_parameters_are_restored_in_place_and_into_shards(tmp_path):
    from torch.distributed.fsdp import fully_shard

    from isthmus._trainers import restore_own

    own = {"weight": torch.arange(6.0).view(3, 2), "bias": torch.ones(3)}
    model = torch.nn.Linear(2, 3)
    before = model.weight
    restore_own(model, own, (), "isthmus.pt")
    assert model.weight is before and torch.equal(model.weight, own["weight"])
    with pytest.raises(isthmus.DataError, match="isthmus.pt is of a model with other names or shapes"):
        restore_own(torch.nn.Linear(2, 4), own, (), "isthmus.pt")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        sharded = fully_shard(torch.nn.Linear(2, 3), mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        restore_own(sharded, own, (), "isthmus.pt")
        assert torch.equal(sharded.weight.full_tensor(), own["weight"])
    finally:
        torch.distributed.destroy_process_group()


# ---- save_pretrained ----


class Savable(torch.nn.Linear):
    def save_pretrained(self, folder):
        torch.save(self.state_dict(), folder / "model.pt")
        if self.in_features == 3:
            raise OSError("the disk is full")


def test_a_module_without_save_pretrained_is_refused_with_what_to_do():
    from isthmus._pretrained import saver_of

    with pytest.raises(isthmus.ConfigError, match=r"a Linear, .*with loop.global_parameters\(\): torch.save"):
        saver_of(torch.nn.Linear(2, 2))
    model = Savable(2, 2)
    assert saver_of(model) is model
    assert saver_of(torch.compile(model, backend="eager")).save_pretrained.__self__ is model


def test_a_folder_is_written_as_a_whole(tmp_path):
    from isthmus._native import ModelFolder
    from isthmus._pretrained import write_folder

    folder, model = tmp_path / "of" / "model", Savable(2, 2)
    write_folder(ModelFolder(folder, False), model.save_pretrained, "first")
    assert {path.name for path in folder.iterdir()} == {"model.pt", "isthmus.json"}
    with pytest.raises(isthmus.ConfigError, match="folder is .*, which has files already; .* or replace=True"):
        ModelFolder(folder, False)
    before = (folder / "model.pt").read_bytes()
    with pytest.raises(isthmus.DataError, match="cannot write .*model: the disk is full"):
        write_folder(ModelFolder(folder, True), Savable(3, 2).save_pretrained, "second")
    assert (folder / "model.pt").read_bytes() == before and "first" in (folder / "isthmus.json").read_text()
    killed = tmp_path / "of" / ".model.isthmus-partial"
    killed.mkdir()
    (killed / "half").write_text("left by a process that was killed")
    write_folder(ModelFolder(folder, True), model.save_pretrained, "third")
    assert {path.name for path in folder.iterdir()} == {"model.pt", "isthmus.json"}
    assert "third" in (folder / "isthmus.json").read_text()
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(isthmus.ConfigError, match="holds notes.txt; expected a new or empty folder"):
        ModelFolder(folder, True)


def test_a_folder_that_another_process_writes_is_left_alone(tmp_path):
    from isthmus._native import ModelFolder
    from isthmus._pretrained import write_folder

    folder, model = tmp_path / "model", Savable(2, 2)

    def write_twice(to):
        with pytest.raises(isthmus.ConfigError, match="another process is writing"):
            write_folder(ModelFolder(folder, False), model.save_pretrained, "other")
        model.save_pretrained(to)

    write_folder(ModelFolder(folder, False), write_twice, "first")
    assert "first" in (folder / "isthmus.json").read_text()

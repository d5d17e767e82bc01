"""Trains a tiny Llama with Hugging Face's Trainer, as a site of --ranks. Checks its parameters at each event.

Saves to --values the global parameters of the end, those of each checkpoint, and the model that training left.
"""

import argparse
import os
import pathlib
import zlib

import safetensors.torch
import torch
import torch.multiprocessing
from toy import copy_of, equal
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import isthmus
from isthmus.huggingface import OuterLoopCallback

LENGTH, VOCABULARY, LATE = 16, 64, 10


class Rows(torch.utils.data.Dataset):
    """Sequences that count up by a step of each site."""

    def __init__(self, name, size):
        self.start, self.size = zlib.crc32(name.encode()), size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        ids = (torch.arange(LENGTH) * (1 + self.start % 5) + self.start + 7 * i) % VOCABULARY
        return {"input_ids": ids, "labels": ids}


class Probe(TrainerCallback):
    """Compares the model with the global parameters at each event. With `late` it requests an evaluation too."""

    def __init__(self, callback, late):
        self.callback, self.late, self.saved, self.evaluated = callback, late, {}, []

    def has_global(self, model):
        return equal(copy_of(model), self.callback.loop.global_values())

    def on_step_begin(self, args, state, control, model=None, **_):
        if state.global_step == args.eval_steps:
            assert not self.has_global(model), "training continues from the global parameters"

    def on_step_end(self, args, state, control, model=None, **_):
        if self.late and state.global_step == LATE:
            control.should_evaluate = True

    def on_evaluate(self, args, state, control, model=None, metrics=None, **_):
        if self.callback.loop.running and not (self.late and state.global_step == LATE):
            assert self.has_global(model), f"the evaluation of step {state.global_step} is of other parameters"
        self.evaluated.append((state.global_step, metrics["eval_loss"]))

    def on_save(self, args, state, control, model=None, **_):
        assert self.has_global(model)
        values = self.callback.loop.global_values()
        folder = pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}")
        if args.should_save:
            found = safetensors.torch.load_file(folder / "model.safetensors")
            assert equal(values, found) and set(found) == set(values), f"{folder} has other parameters"
            loaded = LlamaForCausalLM.from_pretrained(folder)
            assert equal(copy_of(loaded), values)
        self.saved[state.global_step] = values


def train(rank, more, options):
    torch.set_num_threads(1)  # again after a fork, before other threads exist
    config, name = options["config"], options["name"]
    group = None
    if more.ranks > 1:
        # The trainer reads these, as torchrun sets them; the address is not used, because the group exists.
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(more.ranks))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
        store = f"file://{more.values}.store"
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=more.ranks)
        group = torch.distributed.group.WORLD
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, tie_word_embeddings=True, **sizes)
    )
    arguments = TrainingArguments(
        output_dir=more.output,
        max_steps=more.max_steps,
        per_device_train_batch_size=4 // more.ranks,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        eval_strategy="steps",
        eval_steps=more.eval_steps,
        save_steps=more.save_steps,
        save_only_model=more.only_model,
        load_best_model_at_end=more.best,
        include_num_input_tokens_seen=more.count,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    options = {key: value for key, value in options.items() if key not in ("config", "resume")}
    callback = OuterLoopCallback(config, group=group, **options)
    probe = Probe(callback, more.late)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Rows(name, 8 * 24),
        eval_dataset=Rows("held-out", 16),
        callbacks=[callback, probe],
    )
    trainer.train(resume_from_checkpoint=more.load)
    assert callback.loop._moments is not None  # a replica that joins late gets them
    left, final = copy_of(model), callback.loop.global_values()
    evaluated = list(probe.evaluated)
    loss = trainer.evaluate()["eval_loss"]
    trainer.save_model(f"{more.values}-saved")
    callback.loop.save_pretrained(f"{more.values}-pretrained", replace=True)
    if rank == 0:
        found = {"left": left, "final": final, "saved": probe.saved, "evaluated": evaluated, "loss": loss}
        torch.save(found, more.values)
        print("hash", callback.loop.global_hash, flush=True)
    if group is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    options, rest = isthmus.worker_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--values", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--load", help="checkpoint to resume from")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=24)
    parser.add_argument("--eval-steps", type=int, default=8)
    parser.add_argument("--save-steps", type=int, default=13)
    parser.add_argument("--best", action="store_true", help="load_best_model_at_end")
    parser.add_argument("--only-model", action="store_true", help="save_only_model")
    parser.add_argument("--count", default="no", help="include_num_input_tokens_seen")
    parser.add_argument("--late", action="store_true", help="a callback after the loop's requests an evaluation")
    more = parser.parse_args(rest)
    if more.ranks == 1:
        train(0, more, options)
    else:
        torch.multiprocessing.start_processes(train, (more, options), nprocs=more.ranks, start_method="fork")

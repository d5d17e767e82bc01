"""Hugging Face's Trainer as one replica, on a Llama made from its config; needs `transformers` and `accelerate`.

isthmus launch examples/python/trainer.yaml          # a coordinator and two replicas of one rank
isthmus launch examples/python/trainer-ranks.yaml    # the same with two ranks in each: DDP, on GPUs if there are any
"""

import argparse
import pathlib
import zlib

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import isthmus
from isthmus.huggingface import OuterLoopCallback


class Windows(torch.utils.data.Dataset):
    """Random windows of a file's bytes; each replica draws its own, by its seed."""

    def __init__(self, text, length, seed, size):
        self.text, self.length, self.seed, self.size = text, length, seed, size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(self.seed * self.size + i)
        at = torch.randint(len(self.text) - self.length, (), generator=generator).item()
        ids = self.text[at : at + self.length].long()
        return {"input_ids": ids, "labels": ids}


def main():
    options, rest = isthmus.worker_arguments()
    config, name = options.pop("config"), options["name"]
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="runs/trainer/checkpoints", help="folder of the trainer's checkpoints")
    output = parser.parse_args(rest).output
    resume = options.pop("resume") is not None
    torch.manual_seed(1)  # all replicas start with the same parameters
    torch.set_num_threads(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    )
    text = torch.frombuffer(bytearray(pathlib.Path(torch.__file__).read_bytes()), dtype=torch.uint8)
    arguments = TrainingArguments(
        output_dir=f"{output}/{name}",
        max_steps=40,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=5,
        save_steps=20,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    ranks = arguments.world_size
    callback = OuterLoopCallback(config, group=dist.group.WORLD if ranks > 1 else None, **options)
    data = Windows(text, 64, zlib.crc32(name.encode()) % 1000, 8 * ranks * 40)
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()  # the global parameters, in output_dir
    if callback.loop.is_first:
        print(f"global hash {callback.loop.global_hash}", flush=True)


if __name__ == "__main__":
    main()

"""Trains the config's model with transformers, on the sequences that `isthmus worker` reads; those of a file are equal.

The config has no decay, no clipping and a constant learning rate, so torch.optim.AdamW makes the same inner steps.
"""

import argparse
import struct

import torch
import transformers

import isthmus
from isthmus import _native

VOCABULARY, LENGTH, BATCH = 97, 32, 4

torch.set_num_threads(1)
options, rest = isthmus.worker_arguments()
parser = argparse.ArgumentParser()
parser.add_argument("--values", required=True, help="file for the global parameters at the end")
more = parser.parse_args(rest)

experiment = _native.load(options["config"], options["settings"], options["name"], options["site"])
shapes = {name: shape for name, shape, _ in _native.model_table(experiment, VOCABULARY)[0]}
config = transformers.LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=shapes["model.layers.0.mlp.gate_proj.weight"][0],
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=LENGTH,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    attn_implementation="eager",
)
model = transformers.LlamaForCausalLM(config)
isthmus.initial_parameters(options["config"], model, options["settings"], options["name"])
with open(experiment.data_path, "rb") as file:
    ids = torch.tensor(struct.unpack(f"<{LENGTH + 1}H", file.read(2 * (LENGTH + 1))))
ids = ids.expand(BATCH, -1)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)

with isthmus.OuterLoop(model=model, **options) as loop:
    running = loop.running
    while running:
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        running = loop.after_step(loss)
    torch.save(loop.global_values(), more.values)
    print("hash", loop.global_hash, flush=True)

"""A small byte-level GPT as one replica of a run: an ordinary training loop with five lines of isthmus added.

isthmus launch examples/python/nanogpt.yaml        # a coordinator and two of these

or by hand `isthmus coordinator examples/python/nanogpt.yaml --listen 127.0.0.1:7000`, and for each replica

python examples/python/nanogpt.py --config examples/python/nanogpt.yaml --coordinator 127.0.0.1:7000 --name replica-0

Each replica writes its checkpoints to runs/nanogpt/NAME, and the global parameters of the end to model.pt there.
`isthmus launch --resume runs/nanogpt` continues from the newest checkpoints.
"""

import argparse
import pathlib
import zlib

import torch
from torch import nn
from torch.nn import functional

import isthmus


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=256, length=128, layers=4, width=128, heads=4):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def read(folder, limit=8_000_000):
    """The first `limit` bytes of the headers below a folder, in the order of their names."""
    text = bytearray()
    for file in sorted(pathlib.Path(folder).rglob("*.h")):
        text += file.read_bytes()
        if len(text) > limit:
            break
    assert text, f"no *.h below {folder}"
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


def batch_at(loop, text, rank=0):
    """The batch of the next step. Each replica, and each rank of one, draws its own."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{loop.name} {rank} {loop.step}".encode()))
    return batch_of(text, generator, loop.experiment.batch, loop.experiment.sequence_length)


def batch_of(text, generator, batch, length):
    at = torch.randint(len(text) - length - 1, (batch,), generator=generator).tolist()
    rows = torch.stack([text[i : i + length + 1] for i in at]).long()
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, ids, targets):
    return functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(loop, heldout):
    """Evaluates the global parameters on this replica's share of the held-out sequences; returns the mean loss."""
    index, replicas = loop.rank
    generator = torch.Generator().manual_seed(1)
    shares = [batch_of(heldout, generator, 4, 128) for _ in range(4 * replicas)][index::replicas]
    with loop.global_parameters() as model:
        losses = [loss_of(model, *share) * share[1].numel() for share in shares]
    tokens = sum(share[1].numel() for share in shares)
    loop.report_evaluation(sum(losses).item(), tokens)
    return (sum(losses) / tokens).item()


def newest_checkpoint(folder):
    """The checkpoint of the last step."""
    return max(folder.glob("checkpoint-*"), key=lambda path: int(path.stem.split("-")[1]))


def main():
    options, rest = isthmus.worker_arguments()
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", default="runs/nanogpt", help="folder of checkpoints and models")
    more = parser.parse_args(rest)
    torch.set_num_threads(more.threads)

    torch.manual_seed(1)  # all replicas start with the same parameters
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    folder = pathlib.Path(more.output) / options["name"]
    folder.mkdir(parents=True, exist_ok=True)
    if options["resume"]:
        state = torch.load(newest_checkpoint(folder), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        options["resume"] = state["loop"]
    with isthmus.OuterLoop(model=model, optimizer=optimizer, **options) as loop:
        text = read(loop.experiment.data_path)
        train, heldout = text[: -len(text) // 20], text[-len(text) // 20 :]
        running = loop.running
        while running:
            ids, targets = batch_at(loop, train)
            loss = loss_of(model, ids, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            running = loop.after_step(loss)
            if loop.wants_evaluation:
                print(f"step {loop.step}: {evaluate(loop, heldout):.4f} nats per byte", flush=True)
            if loop.wants_checkpoint:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loop": loop.state_dict()}
                torch.save(state, folder / f"checkpoint-{loop.step}.pt")
        with loop.global_parameters():
            torch.save(model.state_dict(), folder / "model.pt")


if __name__ == "__main__":
    main()

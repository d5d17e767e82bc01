"""Model, batches and inner optimizer of all toy workers."""

import zlib

import torch

torch.set_num_threads(1)


class Model(torch.nn.Module):
    def __init__(self, layers=4, width=24, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.inlet = torch.nn.Linear(5, width)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        self.head = torch.nn.Linear(width, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0, 0.2, generator=generator)
        self.to(dtype)

    def forward(self, x):
        x = self.inlet(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def batch(name, step):
    """The batch of a worker's step; steps count from 1."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) % 1000 * 100_000 + step)
    return torch.randn(8, 5, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def loss_of(model, name, step):
    x, y = batch(name, step)
    return torch.nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)).float(), y)


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=5e-3)


def copy_of(model):
    """The parameters' values by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def equal(one, other):
    return all(torch.equal(one[name], value) for name, value in other.items())

"""Streaming DiLoCo (arXiv 2501.18512, Algorithm 2) in plain PyTorch, with all replicas in one process. The merge uses
the weight alpha; if alpha is None, it is the carry merge."""

import torch


class PlainDiloco:
    """`groups` has the parameter names of each fragment. Call `after_step` after each inner step of all replicas."""

    def __init__(self, models, groups, every, delay, alpha, lr, momentum):
        self.local = [dict(model.named_parameters()) for model in models]
        self.globals = {n: p.detach().clone() for n, p in self.local[0].items()}
        self.velocity = {n: torch.zeros_like(p) for n, p in self.globals.items()}
        self.groups, self.every, self.delay, self.alpha = groups, every, delay, alpha
        self.lr, self.momentum = lr, momentum
        self.flying = {}  # fragment -> step, outer gradients by name
        self.step = 0

    def is_due(self, p, step):
        offset = p * self.every // len(self.groups)
        return step >= 1 and (step - offset) % self.every == 0

    @torch.no_grad()
    def send(self, p):
        sent = {name: [self.globals[name] - local[name] for local in self.local] for name in self.groups[p]}
        self.flying[p] = (self.step, sent)

    @torch.no_grad()
    def apply(self, p, alpha):
        _, sent = self.flying.pop(p)
        for name, own in sent.items():
            g = sum(own) / len(own)
            before = self.globals[name].clone()
            self.velocity[name] = self.momentum * self.velocity[name] + g
            self.globals[name] -= self.lr * (g + self.momentum * self.velocity[name])
            for local, x in zip(self.local, own):
                if alpha is None:
                    local[name].add_(self.globals[name] - before).add_(x)
                else:
                    local[name].copy_(alpha * local[name] + (1 - alpha) * self.globals[name])

    def after_step(self):
        self.step += 1
        for p in range(len(self.groups)):
            if self.is_due(p, self.step):
                self.send(p)
        for p in range(len(self.groups)):
            if p in self.flying and self.step >= self.flying[p][0] + self.delay:
                self.apply(p, self.alpha)

    def finish(self):
        """Applies the fragments in flight, then sends and applies all fragments once more."""
        for p in sorted(self.flying, key=lambda p: self.flying[p][0]):
            self.apply(p, self.alpha)
        for p in range(len(self.groups)):
            self.send(p)
        for p in range(len(self.groups)):
            self.apply(p, 0.0)

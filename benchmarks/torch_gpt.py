"""A plain GPT in torch and how it is usually trained on a CPU: the peer of benchmarks/time_to_loss.py.

As a user of torch would write it, with the choices that nanoGPT made: pre-norm layers without biases,
GELU, learned positions, a head tied to the embedding, small normal weights; AdamW that decays matrices
only, warm-up, cosine decay to a tenth, clipping at 1.
"""

import math

import torch
import torch.nn as nn
from torch.nn import functional


class Layer(nn.Module):
    """Attention and an MLP, each behind a norm, each added to the stream."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden, bias=False)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.attention_out = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = nn.LayerNorm(hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.mlp_out = nn.Linear(4 * hidden, hidden, bias=False)

    def attend(self, x):
        """What attention adds."""
        batch, length, hidden = x.shape
        heads = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).reshape(batch, length, hidden))

    def forward(self, x):
        x = x + self.attend(self.attention_norm(x))
        return x + self.mlp_out(functional.gelu(self.up(self.mlp_norm(x))))


class GPT(nn.Module):
    """Token ids to logits."""

    def __init__(self, vocab, hidden, heads, layers, length):
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(length, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, bias=False)
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                smaller = math.sqrt(2 * layers) if "_out" in name else 1.0
                nn.init.normal_(parameter, std=0.02 / smaller)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(model, inputs, targets, reduction="mean"):
    """Nats per token."""
    logits = model(torch.as_tensor(inputs).long())
    return functional.cross_entropy(
        logits.flatten(0, 1), torch.as_tensor(targets).long().flatten(), reduction=reduction
    )


def rate_at(step, rate, steps):
    """A straight rise over a tenth of the run, at most 100 steps, then half a cosine to a tenth."""
    warmup = min(100, steps // 10)
    if step < warmup:
        return rate * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    return rate * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


class Learner:
    """A GPT in training."""

    def __init__(self, vocab, hidden, heads, layers, length, rate, steps, compiled):
        torch.manual_seed(0)
        self.rate, self.steps = rate, steps
        self.plain = GPT(vocab, hidden, heads, layers, length)
        self.model = torch.compile(self.plain) if compiled else self.plain
        parameters = list(self.plain.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() == 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99), fused=True)

    def step(self, number, inputs, targets):
        """One step of training."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(number, self.rate, self.steps)
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.model, inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.plain.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def window_losses(self, inputs, targets):
        """The loss of every token."""
        return loss_of(self.plain, inputs, targets, "none").view(inputs.shape).numpy()

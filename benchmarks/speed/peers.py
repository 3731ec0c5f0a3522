"""What a user would pick instead, on plain torch and transformers, with their fast options on."""

from typing import Any

import torch
import torch.nn as nn
from torch.nn import functional

from benchmarks.speed.contest import Task
from benchmarks.speed.ours import Shape


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        split = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Transformer(nn.Module):
    """A decoder-only transformer of the shape of `standard`."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.length, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape.hidden, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def torch_training_step(shape: Shape, compiled: bool, bfloat16: bool = False) -> Task:
    """Forward, backward, clipping and fused AdamW; in bfloat16 the forward pass under autocast."""
    torch.manual_seed(0)
    plain = Transformer(shape)
    model: Any = torch.compile(plain) if compiled else plain
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    ids = torch.tensor(shape.ids(), dtype=torch.long)

    def call() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            loss = functional.cross_entropy(model(ids).view(-1, shape.vocab), ids.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return Task(call, {"parameters": sum(p.numel() for p in plain.parameters())})


def transformers_generation(shape: Shape, new: int) -> Task:
    """Greedy generation of Hugging Face's GPT-2 with its cache."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocab,
        n_positions=shape.length + new,
        n_embd=shape.hidden,
        n_layer=shape.layers,
        n_head=shape.heads,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    ids = torch.tensor(shape.ids(), dtype=torch.long)
    mask = torch.ones_like(ids)

    def call() -> None:
        with torch.inference_mode():
            found = model.generate(
                ids, attention_mask=mask, max_new_tokens=new, do_sample=False, use_cache=True
            )
        assert found.shape[1] == shape.length + new

    return Task(call, {"tokens": shape.batch * new})

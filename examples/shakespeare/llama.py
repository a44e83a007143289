"""Write llama.onnx and tokens.bin, a small Llama and the characters of Shakespeare: run this file.

It needs torch, onnx and onnxscript (`make dev` installs them).  What differs from gpt.py: norms by
the root mean square, positions that are rotations of queries and keys, queries in groups that share
a key and a value, and a perceptron with a gate (SwiGLU).  Nothing has a bias.
"""

from __future__ import annotations

import argparse

import gpt
import torch
from gpt import HERE, export, read_ids
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as torch's own documentation calls it

LAYERS, FEATURES, HEADS, SHARED, HIDDEN = 4, 128, 4, 2, 352
"""``SHARED``: keys and values, each for several of the heads."""
BASE = 10000.0


def compute_angles(places: int, size: int) -> Tensor:
    """Of each place and feature of a head: place * BASE^(-2 i / size), in both halves alike."""
    rates = BASE ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(places, dtype=torch.float32), rates)
    return torch.cat((angles, angles), dim=-1)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Queries or keys [batch, heads, places, size], each turned by the angles of its place."""
    left, right = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-right, left), dim=-1) * sines


def share(x: Tensor, copies: int) -> Tensor:
    """[batch, heads, places, size] -> [batch, heads * copies, ...]: each so many times."""
    batch, heads, places, size = x.shape
    return x[:, :, None].expand(batch, heads, copies, places, size).flatten(1, 2)


class Block(nn.Module):
    """Attention and a gated perceptron, each beside what goes past it."""

    cosines: Tensor
    sines: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.size = FEATURES // HEADS
        self.norm_1, self.norm_2 = nn.RMSNorm(FEATURES, 1e-5), nn.RMSNorm(FEATURES, 1e-5)
        self.query = nn.Linear(FEATURES, FEATURES, bias=False)
        self.key = nn.Linear(FEATURES, SHARED * self.size, bias=False)
        self.value = nn.Linear(FEATURES, SHARED * self.size, bias=False)
        self.mix = nn.Linear(FEATURES, FEATURES, bias=False)
        self.gate = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.widen = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.narrow = nn.Linear(HIDDEN, FEATURES, bias=False)
        angles = compute_angles(gpt.CONTEXT, self.size)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, places, features = x.shape
        y = self.norm_1(x)
        q, k, v = (
            part(y).view(batch, places, -1, self.size).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        q, k = (rotate(part, self.cosines, self.sines) for part in (q, k))
        k, v = (share(part, HEADS // SHARED) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).reshape(batch, places, features))
        y = self.norm_2(x)
        return torch.as_tensor(x + self.narrow(F.silu(self.gate(y)) * self.widen(y)))


class Llama(nn.Module):
    """Ids [batch, CONTEXT] to logits [batch, CONTEXT, characters]."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, FEATURES)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.RMSNorm(FEATURES, 1e-5)
        self.head = nn.Linear(FEATURES, characters, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                deep = name.endswith(("mix.weight", "narrow.weight"))
                nn.init.normal_(weight, 0, 0.02 / (2 * LAYERS) ** 0.5 if deep else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.norm(self.blocks(self.characters(ids)))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    torch.manual_seed(parser.parse_args().seed)
    characters, ids = read_ids()
    ids.tofile(HERE / "tokens.bin")
    export(Llama(len(characters)).eval(), HERE / "llama.onnx")
    print(f"wrote llama.onnx and tokens.bin: {ids.size} of {len(characters)} characters")

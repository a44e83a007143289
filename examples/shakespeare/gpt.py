"""Write gpt.onnx and tokens.bin, a small GPT and the characters of Shakespeare: run this file.

It needs torch, onnx and onnxscript (`make dev` installs them).  tokens.bin has a uint16 for each
character, as nanoGPT writes them: its place among the characters, sorted.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as torch's own documentation calls it

HERE = Path(__file__).parent
TEXT = HERE / "tinyshakespeare.txt"
LAYERS, FEATURES, HEADS, CONTEXT = 4, 128, 4, 128


class Block(nn.Module):
    """Attention and a perceptron, each beside what goes past it."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout) if dropout else None
        self.norm_1, self.norm_2 = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)
        self.attend = nn.Linear(FEATURES, 3 * FEATURES)
        self.mix = nn.Linear(FEATURES, FEATURES)
        self.widen = nn.Linear(FEATURES, 4 * FEATURES)
        self.narrow = nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        batch, places, features = x.shape
        parts = self.attend(self.norm_1(x)).split(features, dim=2)
        q, k, v = (part.view(batch, places, HEADS, -1).transpose(1, 2) for part in parts)
        y = attend(q, k, v, self.drop)
        x = x + apply(self.drop, self.mix(y.transpose(1, 2).reshape(batch, places, features)))
        y = self.narrow(F.gelu(self.widen(self.norm_2(x))))
        return torch.as_tensor(x + apply(self.drop, y))


def apply(drop: nn.Module | None, x: Tensor) -> Tensor:
    """Dropout, where there is any."""
    return x if drop is None else torch.as_tensor(drop(x))


def attend(q: Tensor, k: Tensor, v: Tensor, drop: nn.Module | None) -> Tensor:
    """Causal attention.  With dropout it is written out: torch's exporter would leave that out of
    ``scaled_dot_product_attention``."""
    if drop is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    places, size = q.shape[2:]
    later = torch.ones(places, places, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(2, 3) / size**0.5).masked_fill(later, -torch.inf)
    return apply(drop, scores.softmax(dim=-1)) @ v


class GPT(nn.Module):
    """Ids [batch, CONTEXT] to logits [batch, CONTEXT, characters]; the two tables are one.

    ``dropout``: the share that is dropped of embeddings, of each block's weights of attention, and
    of what it adds.
    """

    def __init__(self, characters: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, FEATURES)
        self.places = nn.Embedding(CONTEXT, FEATURES)
        self.blocks = nn.Sequential(*(Block(dropout) for _ in range(LAYERS)))
        self.drop = nn.Dropout(dropout) if dropout else None
        self.norm = nn.LayerNorm(FEATURES)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                deep = name.endswith(("mix.weight", "narrow.weight"))
                nn.init.normal_(weight, 0, 0.02 / (2 * LAYERS) ** 0.5 if deep else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, ids: Tensor) -> Tensor:
        x = apply(self.drop, self.characters(ids) + self.places.weight)
        return F.linear(self.norm(self.blocks(x)), self.characters.weight)


def read_ids() -> tuple[list[str], np.ndarray[tuple[int, ...], np.dtype[np.uint16]]]:
    """The characters, sorted, and the text in their numbers."""
    text = TEXT.read_text()
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    return characters, np.array([number[character] for character in text], "<u2")


def export(model: nn.Module, target: Path) -> None:
    """Write ``model`` as an ONNX file with a batch of any size; in training, with its dropout."""
    ids = torch.zeros(2, CONTEXT, dtype=torch.int64)
    batch = ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (ids,), target, dynamic_shapes=batch, external_data=False, verbose=False
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    torch.manual_seed(parser.parse_args().seed)
    characters, ids = read_ids()
    ids.tofile(HERE / "tokens.bin")
    export(GPT(len(characters)).eval(), HERE / "gpt.onnx")
    print(f"wrote gpt.onnx and tokens.bin: {ids.size} of {len(characters)} characters")

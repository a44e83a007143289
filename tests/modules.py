"""Small modules of PyTorch, as people write them: for tests of ``vtrain.from_torch``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, PLACES, FEATURES, HEADS = 12, 6, 8, 2
IMAGE = (1, 6, 6)


def make_mlp(inputs: int = 5, outputs: int = 3) -> nn.Sequential:
    """With a shared layer: one module in two places."""
    shared = nn.Linear(8, 8)
    return nn.Sequential(
        nn.Linear(inputs, 8), nn.ReLU(), shared, nn.Tanh(), shared, nn.Linear(8, outputs)
    )


class Cnn(nn.Module):
    """Convolutions, pools, a residual that is added in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding="same", bias=False)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(4 * 9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv1(x), inplace=True)
        x = x + self.conv2(x)
        x = self.pool(functional.relu_(x))
        return self.fc(torch.flatten(x, 1))  # type: ignore[no-any-return]


class Mixer(nn.Module):
    """Patches of an image, mixed along places and along features, and the mean of all places."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, FEATURES, 2, stride=2)
        self.norm1, self.norm2 = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)
        self.places = nn.Sequential(nn.Linear(9, 12), nn.GELU(), nn.Linear(12, 9))
        self.features = nn.Sequential(nn.Linear(FEATURES, 16), nn.GELU(), nn.Linear(16, FEATURES))
        self.head = nn.Linear(FEATURES, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).mT
        x = x + self.places(self.norm1(x).mT).mT
        x = x + self.features(self.norm2(x))
        return self.head(x.mean(dim=1))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Of a GPT as nanoGPT has it."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm1, self.norm2 = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES, bias=False)
        self.attend = nn.Linear(FEATURES, 3 * FEATURES, bias=False)
        self.project = nn.Linear(FEATURES, FEATURES)
        self.drop = nn.Dropout(dropout)
        self.mlp = nn.ModuleDict(
            {"fc": nn.Linear(FEATURES, 16), "act": nn.GELU(), "out": nn.Linear(16, FEATURES)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, places, features = x.size()
        q, k, v = (
            part.view(batch, places, HEADS, features // HEADS).transpose(1, 2)
            for part in self.attend(self.norm1(x)).split(features, dim=2)
        )
        y = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        y = y.transpose(1, 2).contiguous().view(batch, places, features)
        x = x + self.drop(self.project(y))
        return x + self.mlp["out"](self.mlp["act"](self.mlp["fc"](self.norm2(x))))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """With tied weights, and attention's dropout too; more positions than a sample has places."""

    def __init__(self, dropout: float = 0.0, positions: int = PLACES) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, FEATURES)
        self.wpe = nn.Embedding(positions, FEATURES)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.norm = nn.LayerNorm(FEATURES)
        self.head = nn.Linear(FEATURES, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        _, places = ids.size()
        x = self.wte(ids) + self.wpe(torch.arange(0, places, device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def make_gpt2(**options: Any) -> nn.Module:
    """Of transformers, without dropout unless asked for."""
    from transformers import GPT2Config, GPT2LMHeadModel

    none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=PLACES,
        n_embd=FEATURES,
        n_layer=2,
        n_head=HEADS,
        bos_token_id=0,
        eos_token_id=0,
        **none | options,
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def make_llama() -> nn.Module:
    """Of transformers, with heads that share keys."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=FEATURES,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=PLACES,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


def make_ids(batch: int = 4, seed: int = 0) -> torch.Tensor:
    """Whole numbers [batch, places]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, PLACES), generator=generator)

"""``nn.MultiheadAttention`` written so that the batch stays where it is.

Its own forward pass moves the batch to the second axis and makes it one with the heads.  While a
module is captured, attention is computed with the same weights, in the same order of arithmetic, on
[batch, heads, places, features].  Where one value attends to another, each goes through the whole
of the weights that are stored as one, and the parts that it is meant for are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@contextmanager
def with_plain_attention(module: nn.Module) -> Iterator[None]:
    """``module`` with each ``nn.MultiheadAttention`` of batches that come first written plainly."""
    found = [part for part in module.modules() if type(part) is nn.MultiheadAttention]
    changed = [part for part in found if part.batch_first and "forward" not in vars(part)]
    for part in changed:
        vars(part)["forward"] = partial(_attend, part)
    try:
        yield
    finally:
        for part in changed:
            del vars(part)["forward"]


def _attend(
    layer: nn.MultiheadAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As ``nn.MultiheadAttention.forward``, which does what is not of this form itself."""
    if (
        query.ndim != 3
        or key_padding_mask is not None
        or layer.bias_k is not None
        or layer.add_zero_attn
        or (attn_mask is not None and attn_mask.ndim != 2)
    ):
        return nn.MultiheadAttention.forward(
            *(layer, query, key, value, key_padding_mask, need_weights, attn_mask),
            *(average_attn_weights, is_causal),
        )
    batch, places, features = query.shape
    q, k, v = (
        part.view(batch, part.shape[1], layer.num_heads, layer.head_dim).transpose(1, 2)
        for part in _project(layer, query, key, value)
    )
    mask = attn_mask
    if mask is not None and mask.dtype == torch.bool:  # what is not attended to
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, float("-inf"))
    dropout = layer.dropout if layer.training else 0.0
    weights = None
    if need_weights:
        scores = q @ k.transpose(-2, -1) * layer.head_dim**-0.5
        each = functional.softmax(scores if mask is None else scores + mask, dim=-1)
        each = functional.dropout(each, dropout) if dropout else each
        mixed = each @ v
        weights = each.mean(1) if average_attn_weights else each
    else:
        mixed = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
    joined = mixed.transpose(1, 2).reshape(batch, places, features)
    return layer.out_proj(joined), weights


def _project(
    layer: nn.MultiheadAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> Sequence[torch.Tensor]:
    """Queries, keys and values, each [batch, places, features]."""
    whole: Any = layer.in_proj_weight
    bias: Any = layer.in_proj_bias
    if whole is None:  # of different widths, and so apart; their biases are one
        weights: Any = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        parts = (None,) * 3 if bias is None else bias.chunk(3)
        return [
            functional.linear(x, weight, part)
            for x, weight, part in zip((query, key, value), weights, parts, strict=True)
        ]
    if query is key and key is value:
        return functional.linear(query, whole, bias).chunk(3, dim=-1)
    made = [functional.linear(query, whole, bias)]
    for x, before in ((key, query), (value, key)):
        made.append(made[-1] if x is before else functional.linear(x, whole, bias))
    return [one.chunk(3, dim=-1)[number] for number, one in enumerate(made)]

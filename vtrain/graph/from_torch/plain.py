"""``nn.MultiheadAttention`` written so that the batch stays where it is.

Its own forward pass moves the batch to the second axis and makes it one with the heads.  While a
module is captured, attention of a value to itself is computed with the same weights, in the same
order of arithmetic, on [batch, heads, places, features].
"""

from __future__ import annotations

from collections.abc import Iterator
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
    weight: Any = layer.in_proj_weight
    if (
        query is not key
        or key is not value
        or query.ndim != 3
        or key_padding_mask is not None
        or weight is None
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
        part.view(batch, places, layer.num_heads, layer.head_dim).transpose(1, 2)
        for part in functional.linear(query, weight, layer.in_proj_bias).chunk(3, dim=-1)
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

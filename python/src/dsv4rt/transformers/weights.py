"""The attention weights of a model in memory, as a checkpoint names and stores them."""

from __future__ import annotations

from typing import Any

import torch

_STORED = (torch.float8_e4m3fn, torch.uint8, torch.int8, getattr(torch, "float8_e8m0fnu", torch.uint8))
_SCALE_ENDINGS = ("_scale_inv", "_scale", "_scale_2", "input_scale")


def _as_stored(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Matrices in BF16, vectors, position biases and scales in FP32, what is encoded as it is."""
    if tensor.dtype in _STORED:
        return tensor
    matrix = tensor.dim() == 2 and name.endswith(".weight") and not name.endswith(_SCALE_ENDINGS)
    return tensor.to(torch.bfloat16 if matrix else torch.float32)


def attention_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Name and tensor of every attention weight; matrices that are neither BF16 nor encoded are rounded to BF16."""
    tensors = {}
    for index, layer in enumerate(model.model.layers):
        for name, tensor in layer.self_attn.state_dict().items():
            full = f"model.layers.{index}.self_attn.{name}"
            tensors[full] = _as_stored(name, tensor.detach())
    return tensors

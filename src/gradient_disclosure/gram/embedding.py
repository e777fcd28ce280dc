"""Embeddings: rows of a table looked up by id, one by one or in bags."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradient_disclosure.errors import BatchCouplingError
from gradient_disclosure.gram.call import LayerCall
from gradient_disclosure.gram.registry import ParameterTerm, first_argument, register_call_terms, register_gram_terms
from gradient_disclosure.gram.terms import Lookup


@register_gram_terms(nn.Embedding)
def embedding_terms(module: nn.Embedding, ids: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Term of the table (V, n) from ids (B, ...) and output gradients (B, ..., n)."""
    if module.weight.requires_grad:
        _refuse_frequencies(module)
        ids = ids.long().reshape(ids.shape[0], math.prod(ids.shape[1:]))
        e = e.reshape(*ids.shape, e.shape[-1])
        yield "weight", Lookup(_without_padding(ids, module), e, tuple(module.weight.shape))


def ids_looked_up(module: nn.Module, args: Any, kwargs: Any) -> Tensor | None:
    """The ids that a run of ``module`` looks up in its table, None if that is not all it does with it."""
    ids = first_argument(args, kwargs) if isinstance(module, nn.Embedding) else None
    return ids.detach() if isinstance(ids, Tensor) else None


@register_call_terms(nn.EmbeddingBag)
def embedding_bag_terms(call: LayerCall) -> Iterator[ParameterTerm]:
    """Term of the table (V, n) from one run on bags of ids, fixed (B, T) or with offsets.

    A bag's gradient goes to its positions in the share each has in the bag's output: its weight (sum), one over the
    number of positions (mean), or feature by feature to the first position that holds the maximum (max).

    Raises:
        BatchCouplingError: the table scales gradients by frequency.

    Example:
        >>> import torch
        >>> from gradient_disclosure.gram.call import ForwardState
        >>> bag = torch.nn.EmbeddingBag(3, 1, mode="sum")
        >>> state = ForwardState.now(torch.device("cpu"), random=False)
        >>> call = LayerCall(bag, (torch.tensor([[0, 2]]),), {}, (torch.tensor([[5.0]]),), state, 1)
        >>> [term.per_example().tolist() for _, term in embedding_bag_terms(call)]
        [[[5.0, 0.0, 5.0]]]
    """
    module, e = call.module, call.gradients[0]
    assert isinstance(module, nn.EmbeddingBag)
    if e is None or not module.weight.requires_grad:
        return
    _refuse_frequencies(module)
    e = e.to(torch.promote_types(e.dtype, torch.float32))
    ids, weights = _bags(module, *_arguments(call))
    ids = _without_padding(ids, module)
    if module.mode == "max":
        shares = _share_of_maximum(module.weight.detach(), ids, e)
    elif module.mode == "mean":
        shares = (e / (ids >= 0).sum(dim=1, keepdim=True).clamp(min=1))[:, None].expand(*ids.shape, -1)
    elif weights is not None:
        shares = e[:, None] * weights.to(e.dtype)[..., None]
    else:
        shares = e[:, None].expand(*ids.shape, -1)
    yield "weight", Lookup(ids, shares, tuple(module.weight.shape))


def _refuse_frequencies(module: nn.Embedding | nn.EmbeddingBag) -> None:
    if module.scale_grad_by_freq:
        raise BatchCouplingError(
            f"{module} has scale_grad_by_freq=True: it divides gradients by how often an id occurs in the whole batch, "
            "so one example's gradient depends on the others and has no meaning of its own. Build it with "
            "scale_grad_by_freq=False, or freeze it (requires_grad_(False))."
        )


def _without_padding(ids: Tensor, module: nn.Embedding | nn.EmbeddingBag) -> Tensor:
    """Ids with −1 in place of the padding id."""
    return ids if module.padding_idx is None else ids.masked_fill(ids == module.padding_idx, -1)


def _arguments(call: LayerCall) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Input, offsets and weights, however they were passed."""
    given = dict(zip(("input", "offsets", "per_sample_weights"), call.args, strict=False)) | call.kwargs
    return given["input"], given.get("offsets"), given.get("per_sample_weights")


def _bags(
    module: nn.EmbeddingBag, ids: Tensor, offsets: Tensor | None, weights: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Ids and weights (B, T) of every bag, shorter bags filled up with −1."""
    ids = ids.long()
    if offsets is None:
        return ids, weights
    ends = offsets[1:] if module.include_last_offset else torch.cat([offsets[1:], offsets.new_tensor([len(ids)])])
    starts = offsets[: len(ends)].long()
    lengths = ends.long() - starts
    steps = torch.arange(int(lengths.max()) if len(lengths) else 0, device=ids.device)
    inside = steps < lengths[:, None]
    position = (starts[:, None] + steps).where(inside, 0)
    return ids[position].masked_fill(~inside, -1), None if weights is None else weights[position]


def _share_of_maximum(table: Tensor, ids: Tensor, e: Tensor) -> Tensor:
    """Each feature's gradient at the first position of the bag that holds its maximum, zero elsewhere, (B, T, n)."""
    shares = e.new_zeros(*ids.shape, e.shape[1])
    if ids.shape[1] == 0:
        return shares
    values = table[ids.clamp(min=0)].masked_fill((ids < 0)[..., None], -math.inf)
    return shares.scatter_(1, values.argmax(dim=1, keepdim=True), e[:, None])

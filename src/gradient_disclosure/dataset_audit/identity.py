"""What an audit depends on: the weights and the examples, as checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradient_disclosure.dataset_audit.settings import ExampleIds
from gradient_disclosure.errors import DisclosureError, ExampleIdError, InvalidBatchError


@dataclass(frozen=True)
class Survey:
    """What one pass over the batches finds.

    Attributes:
        ids: (N,) int64 ids of the examples, in order.
        checksum: of everything in the batches.
        first_batch: the first of them.
    """

    ids: Tensor
    checksum: str
    first_batch: Any


def survey(batches: Iterable[Any], example_ids: ExampleIds) -> Survey:
    """Read all batches once, computing nothing.

    Raises:
        DisclosureError: they can be read only once, or there are none.
        ExampleIdError: ids are not integers, one an example, or an id occurs twice.

    Example:
        >>> found = survey([(torch.zeros(2, 1), torch.zeros(2), torch.tensor([4, 7]))], lambda batch: batch[2])
        >>> found.ids.tolist()
        [4, 7]
    """
    if isinstance(batches, Iterator):
        raise DisclosureError("the batches are an iterator, which can be read only once: give a list or a DataLoader")
    digest, ids, first = hashlib.sha256(), [], None
    for number, batch in enumerate(batches):
        first = batch if number == 0 else first
        here = example_ids(batch).detach().cpu()
        if here.dim() != 1 or here.is_floating_point() or here.is_complex():
            raise ExampleIdError(f"ids must be integers, one an example, got {here.dtype} of shape {tuple(here.shape)}")
        ids.append(here.long())
        for leaf in _leaves(batch):
            digest.update(leaf)
    if not ids or not sum(part.numel() for part in ids):
        raise DisclosureError("there are no examples to audit: the batches are empty")
    joined = torch.cat(ids)
    values, counts = joined.unique(return_counts=True)
    if bool((counts > 1).any()):
        raise ExampleIdError(
            f"ids occur more than once in the data set: {values[counts > 1][:10].tolist()}. Each example counts once; "
            "give a loader of one pass without repetition."
        )
    return Survey(joined, digest.hexdigest()[:32], first)


def model_checksum(module: nn.Module) -> str:
    """Checksum of classes, names, shapes, types and values of all parameters and buffers, and of what is trainable.

    Example:
        >>> a, b = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> model_checksum(a) == model_checksum(a), model_checksum(a) == model_checksum(b)
        (True, False)
    """
    classes = [(name, type(child).__qualname__) for name, child in module.named_modules()]
    digest = hashlib.sha256(repr(classes).encode())
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        digest.update(f"{name} {value.requires_grad}".encode())
        for leaf in _leaves(value):
            digest.update(leaf)
    return digest.hexdigest()[:32]


def _leaves(node: Any) -> Iterator[bytes]:
    """The content of nested containers of tensors and plain values."""
    if isinstance(node, Tensor):
        value = node.detach().cpu().contiguous()
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(node, Mapping):
        for key in sorted(node, key=str):
            yield str(key).encode()
            yield from _leaves(node[key])
    elif node is None or isinstance(node, str | bytes | int | float):
        yield repr(node).encode()
    elif isinstance(node, Sequence):
        yield f"{len(node)} parts".encode()
        for part in node:
            yield from _leaves(part)
    else:
        raise InvalidBatchError(
            f"a batch holds a {type(node).__name__}; batches to be audited may hold tensors, numbers and text in "
            "tuples, lists and dicts, so that they can be told from others when an audit is resumed."
        )

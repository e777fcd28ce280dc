"""Per-example gradients of a whole data set at fixed weights, tile by tile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradient_disclosure.dataset_audit.cross_gram import compact, examples_of
from gradient_disclosure.dataset_audit.settings import DatasetAuditSettings
from gradient_disclosure.dataset_audit.stored_terms import join
from gradient_disclosure.dataset_audit.tiling import Tiling
from gradient_disclosure.errors import ExampleIdError, InvalidBatchError
from gradient_disclosure.gram.engine import GradientGram
from gradient_disclosure.gram.kept import kept_terms
from gradient_disclosure.gram.summed import Summed
from gradient_disclosure.gram.terms import Term


def batch_terms(module: nn.Module, batch: Any, settings: DatasetAuditSettings) -> tuple[dict[str, Term], Tensor, float]:
    """Per-example gradients of a batch, by one forward and backward pass in evaluation mode.

    Args:
        module: its mode and its ``.grad`` fields are afterwards what they were.
        batch: what ``settings.losses`` takes.
        settings: losses and ids.

    Returns:
        Terms by name of parameter, on the CPU; the losses (B,); the coverage.

    Raises:
        InvalidBatchError: the losses are not one number an example.
    """
    count = settings.example_ids(batch).numel()
    with _left_as_found(module), torch.enable_grad():
        with GradientGram(module, "sum", exclude=settings.exclude, keep_terms=True) as observed:
            losses = settings.losses(module, batch)
            if losses.shape != (count,):
                raise InvalidBatchError(
                    f"losses must be one number an example, ({count},), got {tuple(losses.shape)}: give a function "
                    "that does not reduce over the batch (reduction='none')."
                )
            losses.sum().backward()
            observed.gram()
            terms = {name: compact(_on_cpu(term)) for name, term in kept_terms(observed).items()}
        return terms, losses.detach().cpu(), observed.coverage


def terms_by_tile(
    module: nn.Module,
    batches: Iterable[Any],
    ids: Tensor,
    tiling: Tiling,
    wanted: Collection[int],
    settings: DatasetAuditSettings,
) -> Iterator[tuple[int, dict[str, Term]]]:
    """Per-example gradients of each tile that is wanted, in order; batches need not end where tiles do.

    Args:
        module: the model.
        batches: the same batches in the same order as those that ``ids`` were read from.
        ids: (N,) ids of all examples, in order.
        tiling: of the N examples.
        wanted: tiles to make; batches of other tiles alone are not computed.
        settings: losses and ids.

    Raises:
        ExampleIdError: the batches are not those that ``ids`` were read from.
    """
    pieces: list[tuple[dict[str, Term], int]] = []
    position = 0
    for batch in batches:
        here = settings.example_ids(batch).cpu()
        start, position = position, position + here.numel()
        if not torch.equal(here, ids[start:position]):
            raise ExampleIdError(
                f"the examples {start} to {position} are others than when the batches were first read: the loader "
                "shuffles. Give one with shuffle=False that yields the same batches each time."
            )
        if here.numel() == 0:
            continue
        terms: dict[str, Term] | None = None
        for tile in range(start // tiling.tile, -(-position // tiling.tile)):
            if tile not in wanted:
                continue
            terms = batch_terms(module, batch, settings)[0] if terms is None else terms
            first, last = tiling.span(tile)
            rows = slice(max(first, start) - start, min(last, position) - start)
            pieces.append(({k: examples_of(term, rows) for k, term in terms.items()}, rows.stop - rows.start))
            if last <= position:
                yield tile, join(pieces)
                pieces = []


@contextmanager
def _left_as_found(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards mode and gradients as they were."""
    modes = [(child, child.training) for child in module.modules()]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    module.eval()
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for child, training in modes:
            child.training = training
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _on_cpu(term: Term) -> Term:
    if isinstance(term, Summed):
        return Summed(tuple(_on_cpu(part) for part in term.terms))
    tensors = {
        field.name: value.detach().cpu()
        for field in fields(term)  # type: ignore[arg-type]
        if isinstance(value := getattr(term, field.name), Tensor)
    }
    return replace(term, **tensors)  # type: ignore[type-var]

"""Competitors that form every per-example gradient: autograd one by one, torch.func, Opacus."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.benchmarks.products import gram_of
from experiments.benchmarks.way import CannotRunError, Observe, Way
from experiments.benchmarks.workload import Workload

LARGE = 2_000_000_000
"""Bytes of all per-example gradients from which torch.func works on a few examples at a time."""
FEW = 4


def _all_rows(workload: Workload) -> int:
    return workload.batch_size * workload.gradient_bytes


@contextmanager
def one_by_one_session(workload: Workload) -> Iterator[Observe]:
    """A forward and a backward pass for each example; the gradient of the batch is their mean."""
    parameters = workload.parameters

    def observe() -> Tensor:
        rows = _empty_rows(workload)
        for i in range(workload.batch_size):
            gradients = torch.autograd.grad(workload.loss(slice(i, i + 1)), parameters)
            for row, gradient in zip(rows, gradients, strict=True):
                row[i] = gradient
        _set_mean(workload, rows)
        return gram_of(rows)

    yield observe


def examples_at_once(workload: Workload) -> int:
    """How many examples torch.func is given at a time."""
    return workload.batch_size if _all_rows(workload) <= LARGE else FEW


@contextmanager
def functional_session(workload: Workload) -> Iterator[Observe]:
    """``vmap(grad(loss))`` over the examples, a few at a time where all together would be large."""
    size = examples_at_once(workload)

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(workload.module, parameters, (x.unsqueeze(0),))
        return workload.loss_of(outputs, y.unsqueeze(0))

    per_example = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    def observe() -> Tensor:
        values = {name: p.detach() for name, p in workload.module.named_parameters() if p.requires_grad}
        if size == workload.batch_size:
            rows = list(per_example(values, workload.inputs, workload.targets).values())
        else:
            rows = _empty_rows(workload)
            for start in range(0, workload.batch_size, size):
                here = slice(start, start + size)
                some = per_example(values, workload.inputs[here], workload.targets[here])
                for row, part in zip(rows, some.values(), strict=True):
                    row[here] = part
        _set_mean(workload, rows)
        return gram_of(rows)

    with sdpa_kernel(SDPBackend.MATH):  # vmap knows no rule for the fused kernel and would loop over the examples
        yield observe


@contextmanager
def opacus_session(workload: Workload) -> Iterator[Observe]:
    """Opacus's hooks, which stay on the module for a whole training and so are set before the clock starts."""
    from opacus.grad_sample import GradSampleModule

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        warnings.filterwarnings("ignore", message="There is a performance drop")  # its own vmap of fused attention
        hooks = GradSampleModule(workload.module, loss_reduction="mean")
        try:
            yield lambda: _opacus_gram(workload)
        finally:
            hooks.to_standard_module()
            for module in workload.module.modules():  # left behind where a backward pass was broken off
                for attribute in ("activations", "max_batch_len"):
                    if hasattr(module, attribute):
                        delattr(module, attribute)


def _opacus_gram(workload: Workload) -> Tensor:
    workload.loss().backward()
    rows = []
    for name, parameter in workload.module.named_parameters():
        if not parameter.requires_grad:
            continue
        row = getattr(parameter, "grad_sample", None)
        if not isinstance(row, Tensor):
            raise CannotRunError(f"Opacus gives no single grad_sample for {name}")
        if len(row) != workload.batch_size:
            raise CannotRunError(
                f"Opacus's grad_sample of {name} has {len(row)} example(s) and not {workload.batch_size}: its layer "
                "was given an input that is the same for all examples"
            )
        rows.append(row)
    found = gram_of(rows)
    for parameter in workload.parameters:
        parameter.grad_sample = None  # type: ignore[attr-defined]  # Opacus's own optimizer does this
    return found


def _empty_rows(workload: Workload) -> list[Tensor]:
    return [p.new_empty(workload.batch_size, *p.shape) for p in workload.parameters]


def _set_mean(workload: Workload, rows: list[Tensor]) -> None:
    for parameter, row in zip(workload.parameters, rows, strict=True):
        parameter.grad = row.mean(dim=0)


def _opacus_bytes(workload: Workload) -> int:
    """It fills a layer's rows by copying them, so that the largest layer's are there twice."""
    largest = max(p.numel() * p.element_size() for p in workload.parameters)
    return _all_rows(workload) + workload.batch_size * largest


def _functional_bytes(workload: Workload) -> int:
    size = examples_at_once(workload)
    return _all_rows(workload) + (0 if size == workload.batch_size else size * workload.gradient_bytes)


ONE_BY_ONE = Way("one_by_one", "autograd, one by one", True, one_by_one_session, extra_bytes=_all_rows)
FUNCTIONAL = Way("torch_func", "torch.func, vmap(grad)", True, functional_session, extra_bytes=_functional_bytes)
OPACUS = Way("opacus", "Opacus hooks", True, opacus_session, extra_bytes=_opacus_bytes)

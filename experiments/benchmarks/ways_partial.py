"""The partial kernel of the public reference code, rebuilt from its description: NOT the Gram of the gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from experiments.benchmarks.way import CannotRunError, Observe, Way
from experiments.benchmarks.workload import Workload


def output_layer(module: nn.Module) -> nn.Linear:
    """The last ``nn.Linear`` of a module."""
    layers = [m for m in module.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise CannotRunError("the model has no nn.Linear, the only layer the partial kernel knows")
    return layers[-1]


def covered(workload: Workload) -> float:
    """Fraction of the trainable parameters that the partial kernel looks at: the weight of the output layer."""
    return output_layer(workload.module).weight.numel() / sum(p.numel() for p in workload.parameters)


@contextmanager
def partial_session(workload: Workload) -> Iterator[Observe]:
    """Output layer only, no bias, positions flattened: ``(Σ_t a_it·a_jt)(Σ_t e_it·e_jt)``, wrong for T > 1."""
    inputs: list[Tensor] = []
    gradients: list[Tensor] = []

    def remember(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        inputs.append(args[0].detach())
        output.register_hook(lambda gradient: gradients.append(gradient.detach()))

    def observe() -> Tensor:
        inputs.clear()
        gradients.clear()
        workload.loss().backward()
        a, e = inputs.pop().flatten(1), gradients.pop().flatten(1) * workload.batch_size
        return ((a @ a.T) * (e @ e.T)).double()

    handle = output_layer(workload.module).register_forward_hook(remember)
    try:
        yield observe
    finally:
        handle.remove()


PARTIAL = Way("partial", "reference's partial kernel (output layer, flattened)", False, partial_session)

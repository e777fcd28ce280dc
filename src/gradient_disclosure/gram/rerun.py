"""Run a whole module again, one example at a time: for what cannot be resolved at a single operation."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradient_disclosure.gram.call import ForwardState
from gradient_disclosure.gram.per_example import Arguments, outputs_agree, per_example_vjp, split_examples
from gradient_disclosure.gram.shared import tensors_of
from gradient_disclosure.gram.terms import Dense, Term

Resolve = Callable[[Sequence[Tensor | None]], Iterator[tuple[nn.Parameter, Term]]]

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MIXES = "its output changes when it is run one example at a time: it mixes the examples of a batch"


class ModuleRun:
    """One run of a module, ready to be run again example by example.

    Args:
        module: the module.
        args: its positional arguments.
        kwargs: its keyword arguments.
        axis_of: axis of the examples of an argument tensor, None if it has none.
        outputs: its output tensors, examples on ``output_axes``; may be left empty where :meth:`problem` is not asked.
        output_axes: one axis an output.
        batch_size: number of examples.
    """

    def __init__(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        axis_of: Callable[[Tensor], int | None],
        outputs: Sequence[Tensor],
        output_axes: Sequence[int],
        batch_size: int,
    ) -> None:
        self._module = module
        self._arguments = Arguments.of(args, kwargs, axis_of, batch_size)
        self._output_axes = tuple(output_axes)
        self._outputs = [self._split(tensor.detach(), at) for at, tensor in enumerate(outputs)]
        self._device = next(tensor.device for tensor in tensors_of((args, kwargs)))
        self._state = ForwardState.now(self._device, random=False)

    def problem(self) -> str | None:
        """Why the module cannot be run one example at a time, None if it can."""
        if not self._arguments.axes:
            return "none of its inputs is known to hold the examples on axis 0"
        try:
            same = outputs_agree(self._run([]), [], self._arguments.examples(), self._outputs)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            if "randomness" in text:
                return "it draws random numbers (active dropout?)"
            return f"it cannot be run again one example at a time: {text}"
        return None if same else MIXES

    def resolver(self, parameters: Sequence[tuple[str, nn.Parameter]]) -> Resolve:
        """What turns the gradients of the outputs into terms of some parameters, named relative to the module."""
        names = [name for name, _ in parameters]
        examples = self._arguments.examples()

        def resolve(gradients: Sequence[Tensor | None]) -> Iterator[tuple[nn.Parameter, Term]]:
            values = [parameter.detach() for _, parameter in parameters]
            arrived = [None if g is None else self._split(g, at) for at, g in enumerate(gradients)]
            with self._state.restored(self._device):
                found = per_example_vjp(self._run(names), values, examples, arrived)
            for (_, parameter), gradient in zip(parameters, found, strict=True):
                yield parameter, Dense(gradient.flatten(1), tuple(parameter.shape))

        return resolve

    def _split(self, tensor: Tensor, position: int) -> Tensor:
        return split_examples(tensor, self._output_axes[position], self._arguments.batch_size)

    def _run(self, names: Sequence[str]) -> Callable[[Sequence[Tensor], Sequence[Tensor]], Any]:
        rest = {name: value.detach() for name, value in self._module.named_parameters() if name not in names}
        rest |= {name: value.detach().clone() for name, value in self._module.named_buffers()}

        def run(shared: Sequence[Tensor], examples: Sequence[Tensor]) -> Any:
            args, kwargs = self._arguments.of_one(examples)
            values = rest | dict(zip(names, shared, strict=True))
            with _as_it_was(self._module):
                output = torch.func.functional_call(self._module, values, args, kwargs)
            return tensors_of(output)

        return run


@contextmanager
def _as_it_was(module: nn.Module) -> Iterator[None]:
    """Run a module's forward without hooks; whatever it stores on itself is put back as it was."""
    stored = [(child, dict(vars(child))) for child in module.modules()]
    numbers = random.getstate()
    for child, _ in stored:
        vars(child).update({key: OrderedDict() for key in HOOKS})
    try:
        yield
    finally:
        random.setstate(numbers)
        for child, attributes in stored:
            vars(child).clear()
            vars(child).update(attributes)

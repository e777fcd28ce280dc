"""Which function turns one run of a layer into per-example gradients of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gradient_disclosure.errors import BatchCouplingError
from gradient_disclosure.gram.call import LayerCall
from gradient_disclosure.gram.terms import Term

ParameterTerm = tuple[str, Term]
GramTerms = Callable[[Any, Tensor, Tensor], Iterator[ParameterTerm]]
"""(module, input, output gradient) → (local parameter name, term) of each TRAINABLE parameter of the module."""
CallTerms = Callable[[LayerCall], Iterator[ParameterTerm]]
"""One run of the module → (parameter name, term); names may be those of children ("out_proj.weight")."""

F = TypeVar("F", bound=GramTerms)
C = TypeVar("C", bound=CallTerms)

_REGISTERED: dict[type[nn.Module] | str, CallTerms] = {}


def register_gram_terms(*layers: type[nn.Module] | str) -> Callable[[F], F]:
    """Make a function the source of per-example gradients for some layer types.

    Args:
        layers: module classes, or their qualified names where the class must not be imported, whose first argument is
            the data and whose output is one tensor.

    Returns:
        A decorator that leaves the function unchanged.
    """

    def register(function: F) -> F:
        _REGISTERED.update(dict.fromkeys(layers, _of_first_argument(function)))
        return function

    return register


def register_call_terms(*layers: type[nn.Module] | str) -> Callable[[C], C]:
    """As :func:`register_gram_terms`, for layers with several inputs or outputs, or whose children never run.

    Args:
        layers: module classes or their qualified names. Their children are left to the function.

    Returns:
        A decorator that leaves the function unchanged.
    """

    def register(function: C) -> C:
        _REGISTERED.update(dict.fromkeys(layers, function))
        return function

    return register


def first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The data a layer was called with."""
    return args[0] if args else next(iter(kwargs.values()), None)


def _of_first_argument(function: GramTerms) -> CallTerms:
    def terms(call: LayerCall) -> Iterator[ParameterTerm]:
        x, e = first_argument(call.args, call.kwargs), call.gradients[0]
        if e is None:
            return
        if call.time_first:
            x, e = x.transpose(0, 1), e.transpose(0, 1)
        precision = torch.promote_types(e.dtype, torch.float32)
        if x.is_floating_point():
            if torch.finfo(e.dtype).eps > torch.finfo(x.dtype).eps:
                x = x.to(e.dtype)  # autocast rounded the input before it was used
            precision = torch.promote_types(precision, x.dtype)
            x = x.to(precision)
        yield from function(call.module, x, e.to(precision))

    return terms


def owned_parameters(module: nn.Module, wanted: Container[int]) -> dict[str, int]:
    """Local name → id of those wanted parameters that belong to ``module`` itself, not to its children."""
    return {name: id(p) for name, p in module.named_parameters(recurse=False) if id(p) in wanted}


def call_terms_of(module: nn.Module) -> CallTerms | None:
    """The registered function of a module, or None.

    A subclass counts only if it runs its registered ancestor's ``forward``: another forward has other gradients. So has
    a module whose weight is computed from others (a parametrization, weight norm).
    """
    own = vars(module)
    if parametrize.is_parametrized(module) or "forward" in own or any(isinstance(v, Tensor) for v in own.values()):
        return None
    for ancestor in type(module).__mro__:
        terms = _REGISTERED.get(ancestor) or _REGISTERED.get(f"{ancestor.__module__}.{ancestor.__qualname__}")
        if terms is not None:
            same = all(
                getattr(type(module), name, None) is getattr(ancestor, name, None)
                for name in ("forward", "_conv_forward")
            )
            return terms if same else None
        if ancestor is nn.Module:
            break
    return None


def refuse_batch_coupling(name: str, module: nn.Module) -> None:
    """Raise if ``module`` mixes the examples of a batch."""
    batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    if batch_norm and (module.training or not module.track_running_stats):
        raise BatchCouplingError(
            f"'{name}' ({type(module).__name__}) normalizes over the batch, so one example's gradient depends on the "
            "others and has no meaning of its own. Replace it by nn.GroupNorm or nn.LayerNorm, or put it in eval "
            "mode (module.eval()) with running statistics."
        )

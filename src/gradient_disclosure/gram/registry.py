"""Which function turns a layer's inputs and output gradients into per-example gradients of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any, TypeVar

from torch import Tensor, nn

from gradient_disclosure.errors import BatchCouplingError, UnsupportedLayerError
from gradient_disclosure.gram.terms import Term

ParameterTerm = tuple[str, Term]
GramTerms = Callable[[Any, Tensor, Tensor], Iterator[ParameterTerm]]
"""(module, input, output gradient) → (local parameter name, term) of each TRAINABLE parameter of the module."""

F = TypeVar("F", bound=GramTerms)

_REGISTERED: dict[type[nn.Module], GramTerms] = {}


def register_gram_terms(*layers: type[nn.Module]) -> Callable[[F], F]:
    """Make a function the source of per-example gradients for some layer types.

    Args:
        layers: module classes whose first positional input is the data and whose output is one tensor.

    Returns:
        A decorator that leaves the function unchanged.
    """

    def register(function: F) -> F:
        _REGISTERED.update(dict.fromkeys(layers, function))
        return function

    return register


def owned_parameters(module: nn.Module, wanted: Container[int]) -> dict[str, int]:
    """Local name → id of those wanted parameters that belong to ``module`` itself, not to its children."""
    return {name: id(p) for name, p in module.named_parameters(recurse=False) if id(p) in wanted}


def gram_terms_of(module: nn.Module) -> GramTerms | None:
    """The registered function of a module, or None.

    A subclass counts only if it runs its registered ancestor's ``forward``: another forward has other gradients.
    """
    for ancestor in type(module).__mro__:
        if ancestor in _REGISTERED:
            same_forward = type(module).forward is ancestor.forward
            return _REGISTERED[ancestor] if same_forward else None
    return None


def layers_with_parameters(module: nn.Module, wanted: Container[int]) -> list[tuple[str, nn.Module, GramTerms]]:
    """Every submodule that owns wanted parameters, with its function.

    Args:
        module: any module.
        wanted: ids of the parameters to cover.

    Returns:
        (qualified name, submodule, function), in the order of ``named_modules``.

    Raises:
        BatchCouplingError: a layer normalizes over the batch (BatchNorm in train mode).
        UnsupportedLayerError: some wanted parameter has no registered function; all of them are named.
    """
    found: list[tuple[str, nn.Module, GramTerms]] = []
    unsupported: list[str] = []
    for name, child in module.named_modules():
        refuse_batch_coupling(name, child)
        owned = owned_parameters(child, wanted)
        if not owned:
            continue
        function = gram_terms_of(child)
        if function is None:
            unsupported += [f"{name}.{local} ({type(child).__name__})".lstrip(".") for local in owned]
        else:
            found.append((name, child, function))
    if unsupported:
        raise UnsupportedLayerError(
            "no per-example gradient is known for: "
            + ", ".join(unsupported)
            + ". Freeze these parameters (requires_grad_(False)), replace the layer, register a function for its type "
            "with gradient_disclosure.gram.register_gram_terms, or leave them out on purpose with exclude=[...]."
        )
    return found


def refuse_batch_coupling(name: str, module: nn.Module) -> None:
    """Raise if ``module`` mixes the examples of a batch."""
    batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    if batch_norm and (module.training or not module.track_running_stats):
        raise BatchCouplingError(
            f"'{name}' ({type(module).__name__}) normalizes over the batch, so one example's gradient depends on the "
            "others and has no meaning of its own. Replace it by nn.GroupNorm or nn.LayerNorm, or put it in eval "
            "mode (module.eval()) with running statistics."
        )

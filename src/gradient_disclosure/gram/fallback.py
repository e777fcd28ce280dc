"""When an operation cannot be resolved: the whole module that it is in, or an error that names it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradient_disclosure.errors import BatchCouplingError, DisclosureError, UnsupportedLayerError
from gradient_disclosure.gram.account import ParameterAccount
from gradient_disclosure.gram.batch_layout import BatchLayout
from gradient_disclosure.gram.frame import Frame, is_plain, versions
from gradient_disclosure.gram.kinds import TensorKinds
from gradient_disclosure.gram.rerun import ModuleRun
from gradient_disclosure.gram.shared import tensors_of


def module_run(
    frame: Frame, args: Any, kwargs: Any, output: Any, kinds: TensorKinds, layout: BatchLayout
) -> ModuleRun | str:
    """A run that can be repeated example by example, or the reason why it cannot."""
    axis, size = layout.axis(frame.name), layout.size
    outputs = tensors_of(output)

    def axis_of(tensor: Tensor) -> int | None:
        held = tensor.dim() > axis and tensor.shape[axis] == size
        return axis if held and kinds.is_data(tensor) else None

    if not size or not outputs or any(t.dim() <= axis or t.shape[axis] != size for t in outputs):
        return f"axis {axis} of what it returns is not the examples"
    if any(kinds.shared(tensor) for tensor in tensors_of((args, kwargs))):
        return "what it is called with comes from parameters itself"
    if not is_plain((args, kwargs)):
        return "it is called with objects that running it again could change"
    if versions(args, kwargs) != frame.versions:
        return "it changes its inputs in place"
    return ModuleRun(frame.module, args, kwargs, axis_of, outputs, [axis] * len(outputs), size)


def refusal(accounts: dict[int, ParameterAccount], lost: dict[int, str], *, mixes: bool) -> DisclosureError:
    """The error that names parameters no exact per-example gradient is known of.

    Args:
        accounts: of all parameters, by ``id``.
        lost: those concerned, with the reason.
        mixes: the reason is that examples are mixed.
    """
    by_reason: dict[str, list[str]] = {}
    for key, reason in lost.items():
        by_reason.setdefault(reason, []).append(f"'{accounts[key].name}'")
    reasons = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    kind = BatchCouplingError if mixes else UnsupportedLayerError
    return kind(
        f"no exact per-example gradient can be had for {reasons}. Freeze these parameters (requires_grad_(False)), "
        "switch the dropout inside off, keep the batch as first axis, register a function for the layer with "
        "gradient_disclosure.gram.register_gram_terms, or leave the parameters out on purpose with exclude=[...]."
    )


def mixing_refusal(frame: Frame) -> BatchCouplingError:
    """The error for a module in which one example acts on the output of another."""
    return BatchCouplingError(
        f"{frame.described} mixes the examples of a batch: what one example gets depends on the others, so it has no "
        "gradient of its own. Replace what works across the batch (a batch statistic, a softmax over axis 0), or "
        "exclude the parameters of this module."
    )

"""The per-example gradients behind a Gram matrix, for products with those of another batch."""

from __future__ import annotations

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.gram.engine import GradientGram
from gradient_disclosure.gram.terms import Term


def kept_terms(observed: GradientGram) -> dict[str, Term]:
    """Per-example gradients of each parameter that took part in a pass, in the form in which they were seen.

    Args:
        observed: an open context with ``keep_terms=True`` whose ``gram()`` has been called. With its
            ``loss_reduction="sum"`` the gradients are those of each example's own loss.

    Returns:
        Name of the parameter → term.

    Raises:
        DisclosureError: the context keeps no terms, or was left.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> with GradientGram(model, "sum", keep_terms=True) as gram:
        ...     model(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
        ...     _ = gram.gram()
        ...     kept_terms(gram)["weight"].per_example().tolist()
        [[1.0, 2.0], [3.0, 4.0]]
    """
    if not (observed._keep_terms and observed._active):
        raise DisclosureError("kept_terms needs GradientGram(..., keep_terms=True) and an open context")
    found = {account.name: account._whole for account in observed._accounts.values() if account.contributed}
    missing = [name for name, term in found.items() if term is None]
    if missing:
        raise DisclosureError(f"the terms of {', '.join(missing)} were not kept")
    return {name: term for name, term in found.items() if term is not None}

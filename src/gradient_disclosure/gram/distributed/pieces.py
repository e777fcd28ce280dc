"""What of a parameter's per-example gradients one process can be given: rows of the parameter."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import singledispatch

from gradient_disclosure.gram.correlation import Correlation
from gradient_disclosure.gram.distributed.forms import tensors_in
from gradient_disclosure.gram.lookup import Lookup
from gradient_disclosure.gram.outer_product import OuterProduct
from gradient_disclosure.gram.summed import Single, Term
from gradient_disclosure.gram.terms import Dense


def smallest(term: Term) -> Term:
    """The same gradients in the form that takes the fewest entries: as they are, or written out.

    Example:
        >>> import torch
        >>> a, e = torch.ones(2, 5, 1), torch.ones(2, 5, 3)
        >>> smallest(OuterProduct(a, e, (3, 1))).g.shape  # 3 entries an example instead of 20
        torch.Size([2, 3])
    """
    held = sum(tensor.numel() for part in term.parts for tensor in tensors_in(part))
    written_out = term.batch_size * math.prod(term.shape)
    already = len(term.parts) == 1 and isinstance(term.parts[0], Dense)
    return term if already or held <= written_out else Dense(term.per_example(), term.shape)


@singledispatch
def can_split(part: Single) -> bool:
    """Whether :func:`rows_of` knows the form and can cut it between any two rows of the parameter."""
    return False


@singledispatch
def rows_of(part: Single, start: int, stop: int) -> Single:
    """The gradients of the parameter's rows ``start`` to before ``stop``, as of a smaller parameter; shares memory."""
    raise TypeError(f"{type(part).__name__} cannot be split by rows")


@can_split.register
def _(part: OuterProduct) -> bool:
    return part.a.shape[2] > 0 and part.row_size % part.a.shape[2] == 0


@rows_of.register
def _(part: OuterProduct, start: int, stop: int) -> Single:
    each = part.row_size // part.a.shape[2]  # rows of the outer product in one of the parameter
    return replace(part, e=part.e[:, :, start * each : stop * each], shape=(stop - start, *part.shape[1:]))


@can_split.register
def _(part: Lookup) -> bool:
    return True


@rows_of.register
def _(part: Lookup, start: int, stop: int) -> Single:
    inside = (part.ids >= start) & (part.ids < stop)
    return replace(part, ids=(part.ids - start).masked_fill(~inside, -1), shape=(stop - start, *part.shape[1:]))


@can_split.register
def _(part: Dense) -> bool:
    return True


@rows_of.register
def _(part: Dense, start: int, stop: int) -> Single:
    g = part.g[:, start * part.row_size : stop * part.row_size]
    return replace(part, g=g, shape=(stop - start, *part.shape[1:]))


@can_split.register
def _(part: Correlation) -> bool:
    return part.groups == 1


@rows_of.register
def _(part: Correlation, start: int, stop: int) -> Single:
    return replace(part, e=part.e[:, :, start:stop], shape=(stop - start, *part.shape[1:]))

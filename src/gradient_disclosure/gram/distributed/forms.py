"""Forms of per-example gradients without their numbers: what another process must know to receive them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from gradient_disclosure.gram.summed import Single


@dataclass(frozen=True)
class TensorForm:
    """Shape and precision of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class PartForm:
    """A part with :class:`TensorForm` in the place of its tensors; any frozen dataclass will do.

    Attributes:
        kind: the part's class.
        values: its fields in order.
    """

    kind: type[Single]
    values: tuple[Any, ...]

    @classmethod
    def of(cls, part: Single) -> PartForm:
        """The form of a part."""
        held = (getattr(part, field.name) for field in fields(part))  # type: ignore[arg-type]
        forms = (TensorForm(tuple(v.shape), v.dtype) if isinstance(v, Tensor) else v for v in held)
        return cls(type(part), tuple(forms))

    def without_numbers(self) -> Single:
        """A part of this form whose tensors lie on torch's meta device: shapes can be computed with it."""
        made = (
            torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, TensorForm) else value
            for value in self.values
        )
        return self.kind(*made)


def tensors_in(part: Single) -> list[Tensor]:
    """The tensors a part is made of, in the order of its fields."""
    held = (getattr(part, field.name) for field in fields(part))  # type: ignore[arg-type]
    return [value for value in held if isinstance(value, Tensor)]


def with_tensors(part: Single, tensors: Sequence[Tensor]) -> Single:
    """The same part made of other tensors, given in the order of :func:`tensors_in`."""
    found = iter(tensors)
    names = [f.name for f in fields(part) if isinstance(getattr(part, f.name), Tensor)]  # type: ignore[arg-type]
    return replace(part, **{name: next(found) for name in names})  # type: ignore[type-var]


def size_in_bytes(parts: Iterable[Single]) -> int:
    """Bytes of all tensors of some parts."""
    return sum(tensor.numel() * tensor.element_size() for part in parts for tensor in tensors_in(part))

"""Per-example gradients on disk, in the form they come in, as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from gradient_disclosure.dataset_audit.cross_gram import squared_norms
from gradient_disclosure.gram.lookup import Lookup
from gradient_disclosure.gram.outer_product import OuterProduct
from gradient_disclosure.gram.summed import Single
from gradient_disclosure.gram.terms import Dense, Term, concatenate, merge

FORMS: dict[str, type[Any]] = {form.__name__: form for form in (Dense, OuterProduct, Lookup)}
"""Name → form of per-example gradients."""

NORMS = "squared_norms"


def join(pieces: Sequence[tuple[Mapping[str, Term], int]]) -> dict[str, Term]:
    """The examples of several batches one after the other.

    Args:
        pieces: (name of the parameter → term, number of examples); a name that is missing stands for zeros.

    Returns:
        Name of the parameter → term of all examples.

    Example:
        >>> piece = {"w": Dense(torch.tensor([[2.0]]), (1,))}
        >>> join([(piece, 1), ({}, 1)])["w"].per_example().tolist()
        [[2.0], [0.0]]
    """
    names = sorted({name for terms, _ in pieces for name in terms})
    joined = {}
    for name in names:
        like = next(terms[name] for terms, _ in pieces if name in terms).parts[0]
        joined[name] = concatenate([terms.get(name) or like.nothing(count) for terms, count in pieces])
    return joined


def save_terms(path: Path, terms: Mapping[str, Term], size: int) -> None:
    """Write terms of ``size`` examples and their squared norms to ``path``."""
    tensors: dict[str, Tensor] = {NORMS: squared_norms(terms, size)}
    layout = []
    for number, (name, term) in enumerate(terms.items()):
        parts = []
        for place, part in enumerate(term.parts):
            if type(part).__name__ not in FORMS:
                raise TypeError(f"{name}: per-example gradients in the form {type(part).__name__} cannot be stored")
            parts.append({"form": type(part).__name__, "shape": list(part.shape)})
            for key, value in _tensors(part).items():
                tensors[f"{number}/{place}/{key}"] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        layout.append({"name": name, "parts": parts})
    save_file(tensors, path, metadata={"layout": json.dumps(layout)})


def load_terms(path: Path) -> dict[str, Term]:
    """Inverse of :func:`save_terms`."""
    terms = {}
    with safe_open(path, framework="pt") as stored:
        for number, entry in enumerate(json.loads(stored.metadata()["layout"])):
            parts = []
            for place, part in enumerate(entry["parts"]):
                form, prefix = FORMS[part["form"]], f"{number}/{place}/"
                names = [field.name for field in fields(form) if field.name != "shape"]
                tensors = {name: stored.get_tensor(prefix + name) for name in names}
                parts.append(form(**tensors, shape=tuple(part["shape"])))
            terms[entry["name"]] = merge(parts)
    return terms


def load_norms(path: Path) -> Tensor:
    """Squared norms (B,) float64 of the gradients stored in ``path``."""
    with safe_open(path, framework="pt") as stored:
        norms: Tensor = stored.get_tensor(NORMS)
    return norms


def bytes_of(terms: Mapping[str, Term]) -> int:
    """Size of terms when stored."""
    return sum(
        value.numel() * value.element_size()
        for term in terms.values()
        for part in term.parts
        for value in _tensors(part).values()
    )


def _tensors(part: Single) -> dict[str, Tensor]:
    return {
        field.name: value
        for field in fields(part)  # type: ignore[arg-type]
        if isinstance(value := getattr(part, field.name), Tensor)
    }

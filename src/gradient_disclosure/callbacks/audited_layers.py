"""From the layers that are to be audited to the parameters that are left out."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from gradient_disclosure.errors import DisclosureError


def checked_layers(layers: Sequence[str] | None, exclude: Sequence[str]) -> tuple[str, ...] | None:
    """The patterns as a tuple, None for all parameters.

    Raises:
        ValueError: no pattern, a single text, or patterns of both kinds.

    Example:
        >>> checked_layers(["head.*"], ())
        ('head.*',)
    """
    if layers is None:
        return None
    if isinstance(layers, str):
        raise ValueError(f"layers must be a list of patterns: layers=[{layers!r}]")
    if exclude:
        raise ValueError(
            f"layers={list(layers)} says what is audited and exclude={list(exclude)} what is not: give one of the two"
        )
    if not layers:
        raise ValueError("layers=[] would audit nothing; leave it out (None) to audit every parameter")
    return tuple(layers)


def patterns_outside(module: nn.Module, layers: Sequence[str]) -> tuple[str, ...]:
    """Patterns for ``exclude`` that match every parameter which no pattern of ``layers`` matches.

    Args:
        module: its parameters' names are matched.
        layers: patterns (``fnmatch``) of names of parameters, e.g. ``"network.4.*"`` or ``"*.bias"``.

    Returns:
        Few patterns: a module without any audited parameter is one.

    Raises:
        DisclosureError: a pattern matches no parameter, or none that is trained.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1))
        >>> patterns_outside(net, ["2.*", "1.bias"])
        ('0.*', '1.weight')
    """
    named = dict(module.named_parameters())
    idle = [pattern for pattern in layers if not any(fnmatchcase(name, pattern) for name in named)]
    if idle:
        raise DisclosureError(
            f"layers={idle} matches no parameter. Patterns are of parameter names, e.g. '*.bias' or 'net.2.*'; the "
            f"names here are {', '.join(list(named)[:4])}{', …' if len(named) > 4 else ''}."
        )
    kept = [name for name in named if any(fnmatchcase(name, pattern) for pattern in layers)]
    if not any(named[name].requires_grad for name in kept):
        raise DisclosureError(f"layers={list(layers)} matches frozen parameters only ({', '.join(kept[:4])}).")
    return tuple(dict.fromkeys(_pattern_around(name, kept) for name in named if name not in kept))


def _pattern_around(name: str, kept: Sequence[str]) -> str:
    """The pattern of the largest module around a parameter in which nothing is kept."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        prefix = ".".join(parts[:depth]) + "."
        if not any(other.startswith(prefix) for other in kept):
            return _literally(prefix) + "*"
    return _literally(name)


def _literally(text: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)

"""Typed reading of flat results: a missing key and None are the same, 'not there'."""

from __future__ import annotations

from dataclasses import dataclass

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.reporting.record import Results


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval, where one is known.

    Attributes:
        value: the estimate.
        low: lower end of the interval, or None.
        high: upper end of the interval, or None.
    """

    value: float
    low: float | None
    high: float | None


def number(results: Results, key: str) -> float | None:
    """Read a number.

    Args:
        results: flat results.
        key: e.g. "utility/test_accuracy".

    Returns:
        The number, or None where the key is missing or None.

    Raises:
        DisclosureError: if there is something else than a number.

    Example:
        >>> number({"utility/test_accuracy": 0.9}, "utility/test_accuracy"), number({}, "cost/total_seconds")
        (0.9, None)
    """
    value = results.get(key)
    if value is None:
        return None
    if isinstance(value, str | bool):
        raise DisclosureError(f"results[{key!r}] must be a number or None, not {value!r}.")
    return float(value)


def estimate(results: Results, key: str) -> Estimate | None:
    """Read a number with the interval stored beside it under ``key_low`` and ``key_high``.

    Example:
        >>> estimate({"auc": 0.6, "auc_low": 0.5, "auc_high": 0.7}, "auc")
        Estimate(value=0.6, low=0.5, high=0.7)
    """
    value = number(results, key)
    if value is None:
        return None
    return Estimate(value, number(results, f"{key}_low"), number(results, f"{key}_high"))


def text(results: Results, key: str) -> str | None:
    """Read a value as text; None where it is missing.

    Example:
        >>> text({"defense/name": "none"}, "defense/name")
        'none'
    """
    value = results.get(key)
    return None if value is None else str(value)

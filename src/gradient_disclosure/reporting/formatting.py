"""How numbers look in every table: a missing value is an en dash, never 0."""

from __future__ import annotations

import math
from collections.abc import Callable

from gradient_disclosure.reporting.values import Estimate

MISSING = "–"

Format = Callable[[float], str]


def significant(value: float) -> str:
    """Three significant digits, thousands separated, powers of ten where the number is very small or large.

    Example:
        >>> [significant(x) for x in (0.0, 0.01234, 12.345, 12345.6, 1234567.0, 0.00001)]
        ['0', '0.0123', '12.3', '12,346', '1.23e+06', '1e-05']
    """
    if 999.5 <= abs(value) < 999_999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def fixed(value: float) -> str:
    """Three decimals, for numbers of order one such as AUC, SSIM and bits.

    Example:
        >>> fixed(0.5)
        '0.500'
    """
    return f"{value:.3f}"


def two_decimals(value: float) -> str:
    """Two decimals, for ε.

    Example:
        >>> two_decimals(7.9962)
        '8.00'
    """
    return f"{value:.2f}"


def percent(value: float) -> str:
    """A fraction as a percentage with one decimal.

    Example:
        >>> percent(0.9423)
        '94.2 %'
    """
    return f"{100 * value:.1f} %"


def decibel(value: float) -> str:
    """A peak signal-to-noise ratio.

    Example:
        >>> decibel(31.27)
        '31.3 dB'
    """
    return f"{value:.1f} dB"


def bits(value: float) -> str:
    """An amount of information.

    Example:
        >>> bits(0.25)
        '0.250 bits'
    """
    return f"{value:.3f} bits"


def multiple(value: float) -> str:
    """A ratio to something.

    Example:
        >>> multiple(1.7)
        '1.70×'
    """
    return f"{value:.2f}×"


def duration(value: float) -> str:
    """Seconds, with minutes from two minutes on.

    Example:
        >>> duration(3.21), duration(187.0)
        ('3.2 s', '3 min 7 s')
    """
    if not 120 <= value < math.inf:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} min {seconds} s"


def count(value: float) -> str:
    """A whole number.

    Example:
        >>> count(1400.0)
        '1,400'
    """
    return f"{value:,.0f}"


def shown(value: float | None, form: Format) -> str:
    """Format a number that may be missing; NaN in a table of examples means the same.

    Example:
        >>> shown(None, percent), shown(0.0, percent), shown(float("nan"), fixed)
        ('–', '0.0 %', '–')
    """
    return MISSING if value is None or math.isnan(value) else form(value)


def shown_estimate(estimate: Estimate | None, form: Format) -> str:
    """Format an estimate with its interval.

    Example:
        >>> shown_estimate(Estimate(0.61, 0.57, 0.65), fixed), shown_estimate(None, fixed)
        ('0.610 [0.570, 0.650]', '–')
        >>> shown_estimate(Estimate(0.061, 0.02, 0.1), percent)
        '6.1 % [2.0, 10.0]'
    """
    if estimate is None:
        return MISSING
    if estimate.low is None or estimate.high is None:
        return form(estimate.value)
    low, high = (form(end).removesuffix(" %") for end in (estimate.low, estimate.high))
    return f"{form(estimate.value)} [{low}, {high}]"

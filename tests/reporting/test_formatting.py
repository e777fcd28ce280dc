from __future__ import annotations

import pytest

from gradient_disclosure.reporting.formatting import (
    duration,
    fixed,
    percent,
    shown,
    shown_estimate,
    significant,
)
from gradient_disclosure.reporting.values import Estimate


@pytest.mark.parametrize(
    ("value", "text"),
    [(999.6, "1,000"), (999.4, "999"), (-12345.0, "-12,345"), (999_999.9, "1e+06"), (0.000123, "0.000123")],
)
def test_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (119.94, "119.9 s"), (120.0, "2 min 0 s"), (179.6, "3 min 0 s")]
)
def test_durations_never_show_sixty_seconds(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_missing_is_a_dash_and_zero_is_not() -> None:
    assert shown(None, percent) == shown(float("nan"), percent) == shown_estimate(None, fixed) == "–"
    assert shown(0.0, percent) == "0.0 %"


def test_an_interval_without_an_end_is_not_shown() -> None:
    assert shown_estimate(Estimate(0.5, None, 0.7), fixed) == "0.500"
    assert shown_estimate(Estimate(0.5, 0.0, 0.7), fixed) == "0.500 [0.000, 0.700]"

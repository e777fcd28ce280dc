from __future__ import annotations

import pytest

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.reporting.values import Estimate, estimate, number


@pytest.mark.parametrize("wrong", ["0.5", True])
def test_text_where_a_number_belongs_is_an_error_that_names_the_key(wrong: str | bool) -> None:
    with pytest.raises(DisclosureError, match="'utility/test_accuracy'"):
        number({"utility/test_accuracy": wrong}, "utility/test_accuracy")


def test_zero_is_a_number_and_none_is_not() -> None:
    assert number({"a": 0}, "a") == 0.0
    assert number({"a": None}, "a") is None


def test_an_interval_is_read_from_its_own_keys() -> None:
    results = {"a": 0.5, "a_low": 0.4, "a_high": 0.7}
    assert estimate(results, "a") == Estimate(0.5, 0.4, 0.7)
    assert estimate({"a_low": 0.4, "a_high": 0.7}, "a") is None

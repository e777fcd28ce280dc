from __future__ import annotations

import numpy as np
import pytest

from gradient_disclosure.attacks.membership.bootstrap import chunk_sizes, percentile_interval


@pytest.mark.parametrize(("resamples", "width"), [(1000, 10), (7, 3_000_000), (3, 10**9), (1, 1)])
def test_chunks_add_up_and_fit(resamples: int, width: int) -> None:
    sizes = list(chunk_sizes(resamples, width))
    assert sum(sizes) == resamples
    assert max(sizes) * width <= 4_000_000 or max(sizes) == 1


def test_undefined_resamples_are_left_out() -> None:
    assert percentile_interval(np.array([np.nan, 0.0, 1.0, np.nan, 2.0]), 0.5) == (0.5, 1.5)

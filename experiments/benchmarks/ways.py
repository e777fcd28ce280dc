"""All ways that are measured, by name."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.benchmarks.way import Way
from experiments.benchmarks.ways_ours import CONTROL, REUSE, UNTOUCHED, UNTOUCHED_FLOAT64
from experiments.benchmarks.ways_pairs import PAIRS
from experiments.benchmarks.ways_partial import PARTIAL
from experiments.benchmarks.ways_rows import FUNCTIONAL, ONE_BY_ONE, OPACUS

WAYS: Mapping[str, Way] = {
    way.name: way
    for way in (CONTROL, UNTOUCHED, UNTOUCHED_FLOAT64, REUSE, ONE_BY_ONE, FUNCTIONAL, OPACUS, PAIRS, PARTIAL)
}
"""The plain step itself is always measured; ``control`` is a second one, whose ratio tells the noise."""

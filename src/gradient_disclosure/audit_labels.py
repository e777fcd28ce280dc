"""Words for an audit that has not seen everything; they stand wherever its scores are shown."""

from __future__ import annotations


def every_nth_step(n: int) -> str:
    """The label of an audit that rests between its steps.

    Example:
        >>> every_nth_step(2)
        'audited every 2nd step (one drawn at random of each 2)'
    """
    return f"audited every {ordinal(n)} step (one drawn at random of each {n})"


def covered_parameters(covered: int, trainable: int) -> str:
    """The label of an audit of some of the parameters.

    Example:
        >>> covered_parameters(650, 13_000)
        '650 of 13,000 parameters (coverage 5.0 %)'
    """
    return f"{covered:,} of {trainable:,} parameters (coverage {100 * covered / trainable:.1f} %)"


def ordinal(n: int) -> str:
    """Counting word.

    Example:
        >>> [ordinal(n) for n in (2, 3, 4, 11, 12, 21, 112)]
        ['2nd', '3rd', '4th', '11th', '12th', '21st', '112th']
    """
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"

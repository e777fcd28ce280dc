from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from gradient_disclosure.reporting.comparison.labels import Box, place_labels

FRAME = Box(0.0, 0.0, 1200.0, 700.0)
SIZE = (70.0, 18.0)


def box_of(center: tuple[float, float]) -> tuple[float, float, float, float]:
    return (center[0] - SIZE[0] / 2, center[1] - SIZE[1] / 2, center[0] + SIZE[0] / 2, center[1] + SIZE[1] / 2)


def overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return min(a[2], b[2]) > max(a[0], b[0]) and min(a[3], b[3]) > max(a[1], b[1])


points = st.lists(st.tuples(st.floats(0, 1200), st.floats(0, 700)), min_size=1, max_size=15)


@given(points)
@settings(max_examples=40, deadline=None)
def test_labels_never_overlap_and_stay_inside(anchors: list[tuple[float, float]]) -> None:
    centers = place_labels(anchors, [SIZE] * len(anchors), [], FRAME)
    boxes = [box_of(center) for center in centers]
    assert not any(overlap(a, b) for a, b in combinations(boxes, 2))
    assert all(box[0] >= 0 and box[1] >= 0 and box[2] <= 1200 and box[3] <= 700 for box in boxes)


def test_labels_of_one_and_the_same_point_are_spread() -> None:
    centers = place_labels([(600.0, 350.0)] * 12, [SIZE] * 12, [], FRAME)
    assert not any(overlap(box_of(a), box_of(b)) for a, b in combinations(centers, 2))


def test_obstacles_are_kept_clear() -> None:
    obstacle = Box(560.0, 300.0, 900.0, 400.0)
    (center,) = place_labels([(600.0, 350.0)], [SIZE], [obstacle], FRAME)
    assert not overlap(box_of(center), (560.0, 300.0, 900.0, 400.0))


def test_a_label_without_any_room_is_still_placed() -> None:
    assert len(place_labels([(5.0, 5.0)] * 3, [SIZE] * 3, [], Box(0.0, 0.0, 10.0, 10.0))) == 3

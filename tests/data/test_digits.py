from __future__ import annotations

import pytest
import torch
from sklearn import datasets

from gradient_disclosure.data import DataSpec, Examples, load_digits


def rows(examples: Examples) -> list[tuple[tuple[float, ...], int]]:
    pixels = (examples.inputs * 16).flatten(1).tolist()
    return [(tuple(image), label) for image, label in zip(pixels, examples.labels.tolist(), strict=True)]


def test_every_image_of_scikit_learn_is_there_once_with_its_label():
    raw = datasets.load_digits()
    expected = sorted((tuple(image), int(label)) for image, label in zip(raw.data.tolist(), raw.target, strict=True))
    bundle = load_digits()
    assert sorted(rows(bundle.pool) + rows(bundle.test)) == expected


def test_pool_and_test_share_no_image():
    bundle = load_digits()
    assert set(rows(bundle.pool)).isdisjoint(rows(bundle.test))


def test_form():
    bundle = load_digits()
    assert bundle.spec == DataSpec(kind="image", shape=(1, 8, 8), num_classes=10)
    assert bundle.pool.inputs.shape == (1400, 1, 8, 8)
    assert bundle.test.inputs.shape == (397, 1, 8, 8)
    for part in (bundle.pool, bundle.test):
        assert part.inputs.dtype == torch.float32
        assert part.labels.dtype == torch.int64
        assert part.inputs.is_contiguous()
    assert bundle.value_range == (bundle.pool.inputs.min(), bundle.pool.inputs.max()) == (0, 1)
    assert bundle.class_names == tuple("0123456789")


def test_the_seed_decides_the_split():
    first, again, other = load_digits(seed=1), load_digits(seed=1), load_digits(seed=2)
    assert torch.equal(first.pool.inputs, again.pool.inputs)
    assert torch.equal(first.test.labels, again.test.labels)
    assert not torch.equal(first.pool.labels, other.pool.labels)


def test_too_many_examples_are_refused():
    with pytest.raises(ValueError, match="pool_size=1401 and test_size=397 do not fit, 1797"):
        load_digits(pool_size=1401)

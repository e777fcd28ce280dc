"""scikit-learn's handwritten digits: real images that need no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn import datasets

from gradient_disclosure.data.bundle import DataBundle, DataSpec, Examples
from gradient_disclosure.data.splits import split_rows


def load_digits(
    *,
    root: str | Path = "data",
    download: bool = False,
    pool_size: int | None = 1400,
    test_size: int | None = 397,
    seed: int = 0,
) -> DataBundle:
    """Loads 1 797 handwritten digits of 8x8 pixels, split at random by `seed` without stratification.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998 (its test set), as
    bundled with scikit-learn.

    Args:
        root: not used, the images come with scikit-learn; here so that all loaders are called alike.
        download: not used, for the same reason.
        pool_size: candidates for membership; None for all that the test set leaves.
        test_size: held-out examples, disjoint from the pool; None for all that the pool leaves.
        seed: seed of the split.

    Returns:
        Inputs (N, 1, 8, 8) float32 in [0, 1], labels (N,) int64 in 0..9.

    Raises:
        ValueError: the sizes do not fit into 1 797 examples.

    Example:
        >>> bundle = load_digits()
        >>> bundle.pool.inputs.shape, len(bundle.test)
        (torch.Size([1400, 1, 8, 8]), 397)
    """
    raw = datasets.load_digits()
    inputs = torch.from_numpy(raw.images.astype(np.float32) / 16).unsqueeze(1)  # scikit-learn's pixels are 0..16
    labels = torch.from_numpy(raw.target.astype(np.int64))
    pool, test = split_rows(len(labels), pool_size, test_size, seed=seed, dataset="digits")
    return DataBundle(
        name="digits",
        spec=DataSpec(kind="image", shape=(1, 8, 8), num_classes=10),
        pool=Examples(inputs[pool], labels[pool]),
        test=Examples(inputs[test], labels[test]),
        value_range=(0.0, 1.0),
        class_names=tuple(str(digit) for digit in range(10)),
    )

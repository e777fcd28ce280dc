"""CIFAR-10 through torchvision's own class."""

from __future__ import annotations

from pathlib import Path

import torch
from torchvision.datasets import CIFAR10

from gradient_disclosure.data.bundle import DataBundle, DataSpec, Examples
from gradient_disclosure.data.locate import DataSource, find_or_download
from gradient_disclosure.data.splits import draw_rows
from gradient_disclosure.errors import MissingDataError

SOURCE = DataSource(
    name="cifar10",
    files=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"),
    folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
)


def load_cifar10(
    *,
    root: str | Path = "data",
    download: bool = False,
    pool_size: int | None = 4000,
    test_size: int | None = 2000,
    seed: int = 0,
) -> DataBundle:
    """Loads CIFAR-10; the pool is drawn by `seed` from the official training set, the test set from the official one.

    The official files are pickles, which could run any code. torchvision compares the MD5 sum of each file with the
    official one before it opens any, so that only the official pickles are ever loaded.

    Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.

    Args:
        root: folder that holds `cifar-10-batches-py`, directly or in `cifar10`. Never written to, unless by a
            download.
        download: download with torchvision into `root` when the files are not there.
        pool_size: candidates for membership, at most 50 000; None for all.
        test_size: held-out examples, at most 10 000; None for all.
        seed: seed of both draws, uniform and without stratification.

    Returns:
        Inputs (N, 3, 32, 32) float32 in [0, 1], labels (N,) int64 in 0..9.

    Raises:
        MissingDataError: a file is missing or not the official one; the message says what to do.
        ValueError: a size is above what exists.

    Example:
        >>> load_cifar10(root="/nowhere")
        Traceback (most recent call last):
        gradient_disclosure.errors.MissingDataError: cifar10: data files are missing.
        ...
    """
    folder = find_or_download(SOURCE, root, download=download, fetch=lambda path: CIFAR10(path, download=True))
    try:
        train, test = CIFAR10(folder.parent, train=True), CIFAR10(folder.parent, train=False)
    except (OSError, RuntimeError) as error:
        raise MissingDataError(
            f"cifar10: the files in {folder.resolve()} are not the official ones ({error}). Their MD5 sums must match, "
            "because they are pickles: delete them and get them again, or choose another folder with data.root."
        ) from error
    return DataBundle(
        name="cifar10",
        spec=DataSpec(kind="image", shape=(3, 32, 32), num_classes=10),
        pool=_draw(train, pool_size, seed, part="pool"),
        test=_draw(test, test_size, seed, part="test"),
        value_range=(0.0, 1.0),
        class_names=tuple(train.classes),
    )


def _draw(data: CIFAR10, size: int | None, seed: int, *, part: str) -> Examples:
    rows = draw_rows(len(data), size, seed=seed, dataset="cifar10", part=part)
    images = torch.from_numpy(data.data[rows.numpy()])  # (N, 32, 32, 3) uint8
    return Examples(
        inputs=images.permute(0, 3, 1, 2).contiguous().float() / 255,
        labels=torch.tensor(data.targets, dtype=torch.int64)[rows],
    )

"""MNIST through torchvision's own class, from any usual layout of the official files."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zlib
from pathlib import Path

from torch import Tensor
from torchvision.datasets import MNIST

from gradient_disclosure.data.bundle import DataBundle, DataSpec, Examples
from gradient_disclosure.data.locate import DataSource, find_or_download, present_file
from gradient_disclosure.data.splits import draw_rows
from gradient_disclosure.errors import MissingDataError

SOURCE = DataSource(
    name="mnist",
    files=(
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ),
    folders=("MNIST/raw", "mnist", "."),
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    suffixes=("", ".gz"),
)


def load_mnist(
    *,
    root: str | Path = "data",
    download: bool = False,
    pool_size: int | None = 4000,
    test_size: int | None = 2000,
    seed: int = 0,
) -> DataBundle:
    """Loads MNIST; the pool is drawn by `seed` from the official training set, the test set from the official one.

    Source: Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-based learning applied to document recognition",
    Proceedings of the IEEE, 1998.

    Args:
        root: folder that holds the four official files, gzipped or not, in `MNIST/raw` (torchvision's layout), in
            `mnist` or directly. Never written to, unless by a download.
        download: download with torchvision into `root` when the files are not there.
        pool_size: candidates for membership, at most 60 000; None for all.
        test_size: held-out examples, at most 10 000; None for all.
        seed: seed of both draws, uniform and without stratification.

    Returns:
        Inputs (N, 1, 28, 28) float32 in [0, 1], labels (N,) int64 in 0..9.

    Raises:
        MissingDataError: a file is missing or damaged; the message says what to do.
        ValueError: a size is above what exists.

    Example:
        >>> load_mnist(root="/nowhere")
        Traceback (most recent call last):
        gradient_disclosure.errors.MissingDataError: mnist: data files are missing.
        ...
    """
    folder = find_or_download(SOURCE, root, download=download, fetch=lambda path: MNIST(path, download=True))
    train, test = _read(folder)
    pool_rows = draw_rows(len(train[1]), pool_size, seed=seed, dataset="mnist", part="pool")
    test_rows = draw_rows(len(test[1]), test_size, seed=seed, dataset="mnist", part="test")
    return DataBundle(
        name="mnist",
        spec=DataSpec(kind="image", shape=(1, 28, 28), num_classes=10),
        pool=_examples(*train, pool_rows),
        test=_examples(*test, test_rows),
        value_range=(0.0, 1.0),
        class_names=tuple(str(digit) for digit in range(10)),
    )


def _read(folder: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images (N, 28, 28) uint8 and labels (N,) int64 of the training set and of the test set."""
    # torchvision reads only unpacked files, in its own layout; the folder they come from may be read-only.
    with tempfile.TemporaryDirectory() as staged:
        raw = Path(staged) / "MNIST" / "raw"
        raw.mkdir(parents=True)
        try:
            for file in SOURCE.files:
                _unpack(folder, file, raw / file)
            train, test = MNIST(staged, train=True), MNIST(staged, train=False)
        except (OSError, EOFError, RuntimeError, AssertionError, ValueError, KeyError, TypeError, zlib.error) as error:
            raise MissingDataError(
                f"mnist: the files in {folder.resolve()} cannot be read ({type(error).__name__}: {error}). "
                "They are damaged or not the official ones: delete them and get them "
                "again, or choose another folder with data.root."
            ) from error
    return (train.data, train.targets), (test.data, test.targets)


def _unpack(folder: Path, file: str, target: Path) -> None:
    path = present_file(SOURCE, folder, file)
    if path is None:
        raise FileNotFoundError(f"{folder / file} has gone")
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as packed, target.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)


def _examples(images: Tensor, labels: Tensor, rows: Tensor) -> Examples:
    return Examples(inputs=images[rows].unsqueeze(1).float() / 255, labels=labels[rows].long())

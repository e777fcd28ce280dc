"""Adult (census income): the UCI files as one-hot and standardized columns."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from gradient_disclosure.data.bundle import DataBundle, DataSpec, Examples
from gradient_disclosure.data.locate import DataSource, find_or_download
from gradient_disclosure.data.splits import draw_rows
from gradient_disclosure.errors import MissingDataError

URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
SOURCE = DataSource(name="adult", files=tuple(SHA256), folders=(".", "adult", "tabular/adult"), url=URL)

COLUMNS = [
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
]
NUMERIC = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
CATEGORICAL = [column for column in COLUMNS if column not in (*NUMERIC, "income")]
CLASS_NAMES = ("<=50K", ">50K")


def load_adult(
    *,
    root: str | Path = "data",
    download: bool = False,
    pool_size: int | None = 4000,
    test_size: int | None = 2000,
    seed: int = 0,
) -> DataBundle:
    """Loads Adult; the pool is drawn by `seed` from `adult.data`, the test set from `adult.test`.

    The columns of an input are the six numeric ones, standardized with mean and (population) standard deviation of
    the drawn pool, then one 0/1 column for each value of each categorical column. The values are those of the whole
    training file, in alphabetical order; "?" is a value of its own, and a value seen only in the test file gives
    zeros. The pool's mean and deviation are treated as public: no privacy budget is spent on them.

    Source: B. Becker and R. Kohavi, "Adult", UCI Machine Learning Repository, 1996.

    Args:
        root: folder that holds `adult.data` and `adult.test`, directly, in `adult` or in `tabular/adult`. Never
            written to, unless by a download.
        download: download from UCI into `root/adult` when the files are not there.
        pool_size: candidates for membership, at most 32 561; None for all.
        test_size: held-out examples, at most 16 281; None for all.
        seed: seed of both draws, uniform and without stratification.

    Returns:
        Inputs (N, 108) float32, labels (N,) int64, 1 for an income above 50K.

    Raises:
        MissingDataError: a file is missing or cannot be parsed; the message says what to do.
        ValueError: a size is above what exists.

    Example:
        >>> load_adult(root="/nowhere")
        Traceback (most recent call last):
        gradient_disclosure.errors.MissingDataError: adult: data files are missing.
        ...
    """
    folder = find_or_download(SOURCE, root, download=download, fetch=_fetch)
    train, test = _parse(folder / "adult.data"), _parse(folder / "adult.test")
    pool_rows = draw_rows(len(train), pool_size, seed=seed, dataset="adult", part="pool").numpy()
    test_rows = draw_rows(len(test), test_size, seed=seed, dataset="adult", part="test").numpy()
    pool, held_out = train.iloc[pool_rows], test.iloc[test_rows]
    categories = {column: sorted(train[column].unique()) for column in CATEGORICAL}
    examples = [_encode(frame, reference=pool, categories=categories) for frame in (pool, held_out)]
    return DataBundle(
        name="adult",
        spec=DataSpec(kind="tabular", shape=tuple(examples[0].inputs.shape[1:]), num_classes=2),
        pool=examples[0],
        test=examples[1],
        value_range=None,
        class_names=CLASS_NAMES,
    )


def _parse(path: Path) -> pd.DataFrame:
    """One row a person, columns `COLUMNS`; the income without the full stop that the test file adds."""
    try:
        frame = pd.read_csv(
            path, header=None, names=COLUMNS, comment="|", skipinitialspace=True, keep_default_na=False, dtype=str
        )
        frame = frame.astype(dict.fromkeys(NUMERIC, "float64"))
        frame["income"] = frame["income"].str.removesuffix(".")
    except (ValueError, AttributeError) as error:  # pandas' parser errors are ValueErrors
        raise _not_adult(path, f"{type(error).__name__}: {error}") from error
    unknown = sorted(map(str, set(frame["income"]) - set(CLASS_NAMES)))  # a cut-off row has NaN
    if unknown or frame.empty:
        raise _not_adult(path, f"its last column holds {unknown[:3]}" if unknown else "it holds no rows")
    return frame


def _not_adult(path: Path, reason: str) -> MissingDataError:
    return MissingDataError(
        f"adult: {path.resolve()} is not the UCI file ({reason}). Delete it and get it again "
        f"from {URL}{path.name}, or choose another folder with data.root."
    )


def _encode(frame: pd.DataFrame, *, reference: pd.DataFrame, categories: dict[str, list[str]]) -> Examples:
    numbers, center = frame[NUMERIC].to_numpy(np.float64), reference[NUMERIC].to_numpy(np.float64)
    scale = center.std(axis=0)
    scale[scale == 0] = 1.0  # a constant column becomes zeros
    columns = [(numbers - center.mean(axis=0)) / scale]
    columns += [frame[column].to_numpy()[:, None] == np.array(values)[None] for column, values in categories.items()]
    inputs = np.concatenate(columns, axis=1, dtype=np.float32, casting="unsafe")
    labels = (frame["income"] == ">50K").to_numpy(np.int64)
    return Examples(inputs=torch.from_numpy(np.ascontiguousarray(inputs)), labels=torch.from_numpy(labels))


def _fetch(root: Path) -> None:
    """Downloads the two files into `root/adult`, each complete and checked or not at all."""
    folder = root / "adult"
    folder.mkdir(parents=True, exist_ok=True)
    for file, expected in SHA256.items():
        with urllib.request.urlopen(URL + file, timeout=60) as response:  # noqa: S310 - the URL is the constant above
            content: bytes = response.read()
        if hashlib.sha256(content).hexdigest() != expected:
            raise OSError(f"{URL}{file} sent {len(content)} bytes that are not the official file (SHA-256 differs)")
        partial = folder / f"{file}.partial"
        partial.write_bytes(content)
        os.replace(partial, folder / file)

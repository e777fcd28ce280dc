from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from gradient_disclosure.data import adult, load_adult
from gradient_disclosure.data.splits import draw_rows
from gradient_disclosure.errors import MissingDataError

TRAIN = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, <=50K
50, Private, 83311, Bachelors, 13, Divorced, Exec-managerial, Husband, White, Male, 0, 0, 40, United-States, <=50K
38, Private, 215646, HS-grad, 9, Divorced, Handlers-cleaners, Wife, White, Male, 0, 0, 40, United-States, >50K
53, ?, 234721, 11th, 7, Divorced, ?, Husband, Black, Male, 0, 0, 40, ?, <=50K
28, Private, 338409, Bachelors, 13, Never-married, Prof-specialty, Wife, Black, Female, 0, 0, 40, Cuba, >50K

"""
TEST = """\
|1x3 Cross validator
25, Never-worked, 226802, 11th, 7, Never-married, ?, Own-child, Black, Male, 0, 0, 50, United-States, <=50K.
44, Private, 160323, Bachelors, 10, Divorced, Exec-managerial, Husband, Black, Male, 7688, 0, 40, Cuba, >50K.

"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "adult.data").write_text(TRAIN)
    (tmp_path / "adult.test").write_text(TEST)
    return tmp_path


def table(path: Path) -> pd.DataFrame:
    """The file by the csv module, numbers as floats; independent of the loader's parser."""
    with path.open(newline="") as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file) if len(row) == 15]
    frame = pd.DataFrame(rows)
    numeric = [0, 2, 4, 10, 11, 12]
    return frame.astype(dict.fromkeys(numeric, float))


def encode(train: pd.DataFrame, pool: pd.DataFrame, frame: pd.DataFrame) -> np.ndarray:
    """StandardScaler of scikit-learn and get_dummies of pandas."""
    numeric, categorical = [0, 2, 4, 10, 11, 12], [1, 3, 5, 6, 7, 8, 9, 13]
    columns = pd.get_dummies(train[categorical], prefix=[str(column) for column in categorical]).columns
    dummies = pd.get_dummies(frame[categorical], prefix=[str(column) for column in categorical]).reindex(
        columns=columns, fill_value=False
    )
    scaler = StandardScaler().fit(pool[numeric].to_numpy())
    return np.hstack([scaler.transform(frame[numeric].to_numpy()), dummies.to_numpy(dtype=float)])


def check_against_pandas(folder: Path, pool_size: int, test_size: int, seed: int) -> None:
    bundle = load_adult(root=folder, pool_size=pool_size, test_size=test_size, seed=seed)
    train, test = table(folder / "adult.data"), table(folder / "adult.test")
    pool = train.iloc[draw_rows(len(train), pool_size, seed=seed, dataset="adult", part="pool").numpy()]
    held_out = test.iloc[draw_rows(len(test), test_size, seed=seed, dataset="adult", part="test").numpy()]
    np.testing.assert_allclose(bundle.pool.inputs.numpy(), encode(train, pool, pool), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(bundle.test.inputs.numpy(), encode(train, pool, held_out), rtol=1e-5, atol=1e-6)
    assert bundle.pool.labels.tolist() == [int(label.startswith(">")) for label in pool[14]]
    assert bundle.test.labels.tolist() == [int(label.startswith(">")) for label in held_out[14]]


@pytest.mark.parametrize("pool_size", [3, 5])
def test_columns_against_scikit_learn_and_pandas(root: Path, pool_size: int):
    check_against_pandas(root, pool_size, 2, seed=4)


def test_real_adult_against_scikit_learn_and_pandas(shared_data: Path):
    check_against_pandas(shared_data / "tabular" / "adult", 5000, 3000, seed=0)


def test_real_adult_in_full(shared_data: Path, unchanged: Callable[[Path], object]):
    before = unchanged(shared_data / "tabular")
    bundle = load_adult(root=shared_data, pool_size=None, test_size=None)
    assert unchanged(shared_data / "tabular") == before
    assert bundle.pool.inputs.shape == (32_561, 108)
    assert bundle.test.inputs.shape == (16_281, 108)
    # The counts of the UCI description: 24.08 % and 23.62 % earn more than 50K.
    assert (int(bundle.pool.labels.sum()), int(bundle.test.labels.sum())) == (7_841, 3_846)
    assert (bundle.pool.inputs[:, 6:].sum(1) == 8).all()


def test_form(root: Path):
    bundle = load_adult(root=root, pool_size=4, test_size=1)
    assert bundle.spec.kind == "tabular"
    assert bundle.spec.shape == tuple(bundle.pool.inputs.shape[1:])
    assert bundle.spec.num_classes == 2
    assert bundle.value_range is None
    assert bundle.class_names == ("<=50K", ">50K")
    for part in (bundle.pool, bundle.test):
        assert part.inputs.dtype == torch.float32
        assert part.labels.dtype == torch.int64
        assert part.inputs.is_contiguous()


def test_an_unseen_value_gives_zeros_and_a_question_mark_is_a_value(root: Path):
    bundle = load_adult(root=root, pool_size=None, test_size=None)
    names = [f"{column}={value}" for column in adult.CATEGORICAL for value in values(root, column)]
    one_hot = {name: bundle.test.inputs[:, 6 + position] for position, name in enumerate(names)}
    young = int((bundle.test.labels == 0).nonzero())
    assert len(names) + 6 == bundle.test.inputs.shape[1]
    assert all(one_hot[f"workclass={value}"][young] == 0 for value in values(root, "workclass"))
    assert one_hot["occupation=?"][young] == 1


def values(root: Path, column: str) -> list[str]:
    return sorted(set(table(root / "adult.data")[adult.COLUMNS.index(column)]))


def test_a_constant_column_becomes_zeros(root: Path):
    bundle = load_adult(root=root, pool_size=None, test_size=None)
    hours = bundle.pool.inputs[:, adult.NUMERIC.index("hours-per-week")]
    assert hours.tolist() == [0] * 5


def test_the_seed_decides_the_pool(root: Path):
    first, again, other = (load_adult(root=root, pool_size=4, test_size=1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.pool.inputs, again.pool.inputs)
    assert not torch.equal(first.pool.inputs, other.pool.inputs)


@pytest.mark.parametrize("layout", ["adult", "tabular/adult"])
def test_other_layouts(root: Path, layout: str):
    target = root / "elsewhere" / layout
    target.mkdir(parents=True)
    for file in ("adult.data", "adult.test"):
        (root / file).rename(target / file)
    assert len(load_adult(root=root / "elsewhere", pool_size=None, test_size=None).pool) == 5


def test_too_many_examples_are_refused(root: Path):
    with pytest.raises(ValueError, match=r"adult: pool_size=6 .* 5 examples"):
        load_adult(root=root, pool_size=6, test_size=1)


def test_a_missing_file_is_named_with_its_address(root: Path):
    (root / "adult.test").unlink()
    with pytest.raises(MissingDataError, match=rf"(?s){root}: lacks adult.test\n.*archive.ics.uci.edu"):
        load_adult(root=root)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "<html>\n<p>Please log in</p>\n",
        TRAIN.replace("<=50K", "maybe"),
        TRAIN.replace("<=50K", "no") + "39, State-gov\n",
        TRAIN + "39, St",
        "a, b\n" * 3,
    ],
)
def test_another_file_is_refused(root: Path, content: str):
    (root / "adult.data").write_text(content)
    with pytest.raises(MissingDataError, match=f"{root}/adult.data is not the UCI file"):
        load_adult(root=root)


def serve(monkeypatch: pytest.MonkeyPatch, root: Path, *, honest: bool = True) -> None:
    sums = {file: hashlib.sha256((root / file).read_bytes()).hexdigest() for file in ("adult.data", "adult.test")}
    if not honest:
        sums["adult.test"] = "0" * 64
    monkeypatch.setattr(adult, "URL", root.as_uri() + "/")
    monkeypatch.setattr(adult, "SHA256", sums)


def test_download(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    serve(monkeypatch, root)
    bundle = load_adult(root=tmp_path / "new", download=True, pool_size=None, test_size=None)
    assert torch.equal(bundle.pool.inputs, load_adult(root=root, pool_size=None, test_size=None).pool.inputs)
    assert sorted(path.name for path in (tmp_path / "new" / "adult").iterdir()) == ["adult.data", "adult.test"]


def test_a_download_of_something_else_is_not_kept(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    serve(monkeypatch, root, honest=False)
    with pytest.raises(MissingDataError, match=r"The download failed: .*adult.test sent \d+ bytes"):
        load_adult(root=tmp_path / "new", download=True)
    assert [path.name for path in (tmp_path / "new" / "adult").iterdir()] == ["adult.data"]


def test_the_checksums_are_those_of_the_real_files(shared_data: Path):
    for file, expected in adult.SHA256.items():
        assert hashlib.sha256((shared_data / "tabular" / "adult" / file).read_bytes()).hexdigest() == expected

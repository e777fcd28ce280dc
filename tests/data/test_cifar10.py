from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from gradient_disclosure.data import DataSpec, load_cifar10
from gradient_disclosure.errors import MissingDataError

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


@pytest.fixture
def batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[bytes, object]]:
    """Six batches of four random images in the official format, with torchvision's MD5 sums set to theirs."""
    random = np.random.default_rng(0)
    made = {
        name: {
            b"data": random.integers(0, 256, (4, 3072), dtype=np.uint8),
            b"labels": random.integers(0, 10, 4).tolist(),
        }
        for name in BATCHES
    }
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    # As in the official files, which Python 2 wrote, the keys are bytes that torchvision decodes as latin1.
    contents = {**made, "batches.meta": {b"label_names": NAMES}}
    sums = {}
    for name, content in contents.items():
        text = {key.decode(): value for key, value in content.items()}
        (folder / name).write_bytes(pickle.dumps(text, protocol=2))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    monkeypatch.setattr(CIFAR10, "train_list", [[name, sums[name]] for name in BATCHES[:5]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})
    return made


def same_rows(inputs: torch.Tensor, labels: torch.Tensor, batches: list[dict[bytes, object]]) -> bool:
    """A row of the official format is the red plane, the green plane, then the blue plane, each row by row."""
    pixels = (inputs * 255).round().to(torch.uint8).flatten(1).numpy()
    found = sorted((row.tobytes(), int(label)) for row, label in zip(pixels, labels, strict=True))
    expected = [pair for batch in batches for pair in zip(batch[b"data"], batch[b"labels"], strict=True)]
    return found == sorted((row.tobytes(), label) for row, label in expected)


def test_every_row_is_there_with_its_label_and_the_root_is_left_alone(
    tmp_path: Path, batches: dict[str, dict[bytes, object]], unchanged: Callable[[Path], object]
):
    before = unchanged(tmp_path)
    bundle = load_cifar10(root=tmp_path, pool_size=None, test_size=None)
    assert unchanged(tmp_path) == before
    assert same_rows(bundle.pool.inputs, bundle.pool.labels, [batches[name] for name in BATCHES[:5]])
    assert same_rows(bundle.test.inputs, bundle.test.labels, [batches["test_batch"]])


def test_form_and_seed(tmp_path: Path, batches: object):
    first, again, other = (load_cifar10(root=tmp_path, pool_size=15, test_size=3, seed=seed) for seed in (0, 0, 1))
    assert first.spec == DataSpec(kind="image", shape=(3, 32, 32), num_classes=10)
    assert first.class_names == tuple(NAMES)
    assert first.pool.inputs.shape == (15, 3, 32, 32)
    assert first.test.inputs.shape == (3, 3, 32, 32)
    assert first.pool.inputs.dtype == torch.float32
    assert first.pool.labels.dtype == torch.int64
    assert first.pool.inputs.is_contiguous()
    assert first.pool.inputs.min() == 0
    assert first.pool.inputs.max() == 1
    assert torch.equal(first.pool.inputs, again.pool.inputs)
    assert not torch.equal(first.pool.inputs, other.pool.inputs)


def test_it_is_also_found_in_a_folder_of_its_own(tmp_path: Path, batches: object):
    (tmp_path / "root").mkdir()
    (tmp_path / "cifar-10-batches-py").rename(tmp_path / "moved")
    (tmp_path / "root" / "cifar10").mkdir()
    (tmp_path / "moved").rename(tmp_path / "root" / "cifar10" / "cifar-10-batches-py")
    assert len(load_cifar10(root=tmp_path / "root", pool_size=None, test_size=None).pool) == 20


def test_too_many_examples_are_refused(tmp_path: Path, batches: object):
    with pytest.raises(ValueError, match=r"cifar10: pool_size=21 .* 20 examples"):
        load_cifar10(root=tmp_path, pool_size=21, test_size=3)


def test_the_missing_file_is_named(tmp_path: Path, batches: object):
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(MissingDataError, match=f"{tmp_path}/cifar-10-batches-py: lacks data_batch_3\n"):
        load_cifar10(root=tmp_path)


@pytest.mark.parametrize("name", ["data_batch_2", "batches.meta"])
def test_a_pickle_that_is_not_the_official_one_is_never_opened(tmp_path: Path, batches: object, name: str):
    witness = tmp_path / "witness"

    class Harmful:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (witness,)

    harmful = pickle.dumps(Harmful(), protocol=2)
    pickle.loads(harmful)
    assert witness.exists()
    witness.unlink()
    (tmp_path / "cifar-10-batches-py" / name).write_bytes(harmful)
    with pytest.raises(MissingDataError, match=r"are not the official ones .* MD5"):
        load_cifar10(root=tmp_path)
    assert not witness.exists()


@pytest.mark.slow
def test_the_official_files_against_pickle(tmp_path: Path, shared_data: Path):
    built = subprocess.run(
        [sys.executable, shared_data / "cifar10" / "build.py", tmp_path], capture_output=True, text=True, check=False
    )
    if built.returncode:
        pytest.skip(f"the official CIFAR-10 files could not be built here: {built.stderr[-300:]}")
    bundle = load_cifar10(root=tmp_path, pool_size=None, test_size=None)
    folder = tmp_path / "cifar-10-batches-py"
    official = {name: pickle.loads((folder / name).read_bytes(), encoding="bytes") for name in BATCHES}
    assert (len(bundle.pool), len(bundle.test)) == (50_000, 10_000)
    assert same_rows(bundle.pool.inputs, bundle.pool.labels, [official[name] for name in BATCHES[:5]])
    assert same_rows(bundle.test.inputs, bundle.test.labels, [official["test_batch"]])
    assert bundle.class_names == tuple(NAMES)

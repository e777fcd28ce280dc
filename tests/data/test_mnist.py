from __future__ import annotations

import gzip
import hashlib
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import MNIST

from gradient_disclosure.data import DataSpec, load_mnist
from gradient_disclosure.errors import MissingDataError

FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


def idx(array: np.ndarray) -> bytes:
    """The IDX format: two zero bytes, type 8 (unsigned byte), number of axes, the axes as big-endian integers, data."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        file: random.integers(
            0, 256 if "images" in file else 10, (count, 28, 28) if "images" in file else count
        ).astype(np.uint8)
        for file, count in zip(FILES, (20, 20, 8, 8), strict=True)
    }


def write(folder: Path, arrays: dict[str, np.ndarray], *, packed: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, array in arrays.items():
        if packed:
            (folder / f"{file}.gz").write_bytes(gzip.compress(idx(array), mtime=0))
        else:
            (folder / file).write_bytes(idx(array))


def same_rows(inputs: torch.Tensor, labels: torch.Tensor, images: np.ndarray, targets: np.ndarray) -> bool:
    pixels = (inputs * 255).round().to(torch.uint8).numpy()
    found = sorted((image.tobytes(), int(label)) for image, label in zip(pixels, labels, strict=True))
    return found == sorted((image.tobytes(), int(label)) for image, label in zip(images, targets, strict=True))


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("layout", ["MNIST/raw", "mnist", "."])
def test_every_layout_gives_the_same_rows_and_is_left_alone(
    tmp_path: Path, arrays: dict[str, np.ndarray], unchanged: Callable[[Path], object], layout: str, packed: bool
):
    write(tmp_path / layout, arrays, packed=packed)
    before = unchanged(tmp_path)
    bundle = load_mnist(root=tmp_path, pool_size=None, test_size=None)
    assert unchanged(tmp_path) == before
    assert same_rows(bundle.pool.inputs, bundle.pool.labels, arrays[FILES[0]], arrays[FILES[1]])
    assert same_rows(bundle.test.inputs, bundle.test.labels, arrays[FILES[2]], arrays[FILES[3]])


def test_form_and_seed(tmp_path: Path, arrays: dict[str, np.ndarray]):
    write(tmp_path, arrays, packed=True)
    first, again, other = (load_mnist(root=tmp_path, pool_size=15, test_size=5, seed=seed) for seed in (0, 0, 1))
    assert first.spec == DataSpec(kind="image", shape=(1, 28, 28), num_classes=10)
    assert first.pool.inputs.shape == (15, 1, 28, 28)
    assert first.test.inputs.shape == (5, 1, 28, 28)
    assert first.pool.inputs.dtype == torch.float32
    assert first.pool.labels.dtype == torch.int64
    assert first.pool.inputs.is_contiguous()
    assert first.pool.inputs.min() == 0
    assert first.pool.inputs.max() == 1
    assert torch.equal(first.pool.inputs, again.pool.inputs)
    assert torch.equal(first.test.inputs, again.test.inputs)
    assert not torch.equal(first.pool.inputs, other.pool.inputs)
    assert not torch.equal(first.test.inputs, other.test.inputs)


def test_too_many_examples_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray]):
    write(tmp_path, arrays, packed=False)
    with pytest.raises(ValueError, match=r"mnist: pool_size=21 .* 20 examples"):
        load_mnist(root=tmp_path, pool_size=21, test_size=5)
    with pytest.raises(ValueError, match=r"mnist: test_size=9 .* 8 examples"):
        load_mnist(root=tmp_path, pool_size=20, test_size=9)


def test_the_missing_file_is_named(tmp_path: Path, arrays: dict[str, np.ndarray]):
    write(tmp_path / "mnist", arrays, packed=True)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(MissingDataError, match=f"{tmp_path}/mnist: lacks t10k-labels-idx1-ubyte\n"):
        load_mnist(root=tmp_path)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("keep", [0, 3, 500])
def test_a_truncated_file_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], packed: bool, keep: int):
    write(tmp_path, arrays, packed=packed)
    file = tmp_path / (FILES[0] + (".gz" if packed else ""))
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(MissingDataError, match=f"the files in {tmp_path} cannot be read .* data.root"):
        load_mnist(root=tmp_path)


def test_download_goes_through_torchvision(
    tmp_path: Path, arrays: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "server", arrays, packed=True)
    sums = [(p.name, hashlib.md5(p.read_bytes()).hexdigest()) for p in sorted((tmp_path / "server").iterdir())]
    monkeypatch.setattr(MNIST, "resources", sums)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(tmp_path / "server") as address:
        monkeypatch.setattr(MNIST, "mirrors", [address])
        bundle = load_mnist(root=tmp_path / "data", download=True, pool_size=None, test_size=None)
    assert same_rows(bundle.pool.inputs, bundle.pool.labels, arrays[FILES[0]], arrays[FILES[1]])
    monkeypatch.setattr(MNIST, "mirrors", [])
    load_mnist(root=tmp_path / "data", download=True, pool_size=1, test_size=1)


def test_a_failed_download_says_where_it_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(MNIST, "mirrors", [(tmp_path / "nowhere").as_uri() + "/"])
    with pytest.raises(MissingDataError, match="The download failed: Error downloading train-images"):
        load_mnist(root=tmp_path, download=True)


def test_real_mnist_against_numpy(shared_data: Path):
    bundle = load_mnist(root=shared_data, pool_size=None, test_size=None)
    for part, prefix in ((bundle.pool, "train"), (bundle.test, "t10k")):
        with gzip.open(shared_data / "mnist" / f"{prefix}-images-idx3-ubyte.gz") as file:
            images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
        with gzip.open(shared_data / "mnist" / f"{prefix}-labels-idx1-ubyte.gz") as file:
            labels = np.frombuffer(file.read(), np.uint8, offset=8)
        assert same_rows(part.inputs, part.labels, images, labels)
    assert (len(bundle.pool), len(bundle.test)) == (60_000, 10_000)

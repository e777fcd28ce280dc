from __future__ import annotations

from pathlib import Path
from urllib.error import URLError

import pytest

from gradient_disclosure.data.locate import DataSource, find_folder, find_or_download
from gradient_disclosure.errors import MissingDataError

SOURCE = DataSource(
    name="toy",
    files=("images", "labels"),
    folders=(".", "toy"),
    url="https://example.org/toy",
    suffixes=("", ".gz"),
)


def put(folder: Path, *files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).touch()


def never(root: Path) -> None:
    raise AssertionError("nothing may be downloaded here")


def test_the_first_complete_folder_is_taken(tmp_path: Path):
    put(tmp_path, "images")
    put(tmp_path / "toy", "images.gz", "labels")
    assert find_folder(SOURCE, tmp_path) == tmp_path / "toy"
    put(tmp_path, "labels")
    assert find_folder(SOURCE, tmp_path) == tmp_path


def test_a_missing_file_is_named_with_the_places_and_the_ways_out(tmp_path: Path):
    put(tmp_path, "images")
    with pytest.raises(MissingDataError) as caught:
        find_or_download(SOURCE, tmp_path, download=False, fetch=never)
    lines = str(caught.value).splitlines()
    assert f"  {tmp_path}: lacks labels" in lines
    assert f"  {tmp_path / 'toy'}: no such folder" in lines
    assert "Needed, all in one folder (each as it is or .gz): images, labels" in lines
    assert any("data.download=true" in line and SOURCE.url in line for line in lines)
    assert any("data.root=" in line for line in lines)


def test_a_relative_root_is_shown_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingDataError, match=str(tmp_path / "data" / "toy")):
        find_or_download(SOURCE, "data", download=False, fetch=never)


def test_nothing_is_downloaded_that_is_there(tmp_path: Path):
    put(tmp_path, "images", "labels")
    assert find_or_download(SOURCE, tmp_path, download=True, fetch=never) == tmp_path


def test_a_download_is_found_afterwards(tmp_path: Path):
    folder = find_or_download(SOURCE, tmp_path, download=True, fetch=lambda root: put(root / "toy", "images", "labels"))
    assert folder == tmp_path / "toy"


@pytest.mark.parametrize("error", [URLError("no route to host"), RuntimeError("no mirror"), PermissionError("denied")])
def test_a_failed_download_says_why(tmp_path: Path, error: Exception):
    def fail(root: Path) -> None:
        raise error

    with pytest.raises(MissingDataError) as caught:
        find_or_download(SOURCE, tmp_path, download=True, fetch=fail)
    assert f"The download failed: {error}" in str(caught.value)
    assert "data.root=" in str(caught.value)
    assert caught.value.__cause__ is error


def test_a_download_that_brings_too_little_is_an_error(tmp_path: Path):
    with pytest.raises(MissingDataError, match="lacks labels"):
        find_or_download(SOURCE, tmp_path, download=True, fetch=lambda root: put(root / "toy", "images"))

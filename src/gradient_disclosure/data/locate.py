"""Finds the files of a data set under a root, or says which are missing, where they were looked for and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gradient_disclosure.errors import MissingDataError


@dataclass(frozen=True)
class DataSource:
    """The official files of a data set and where they may lie.

    Attributes:
        name: name of the data set, e.g. "mnist".
        files: names of the files, all needed, in one folder.
        folders: folders to look in, relative to the root, in this order.
        url: where the official files come from.
        suffixes: endings with any of which a file may be there, e.g. ("", ".gz").
    """

    name: str
    files: tuple[str, ...]
    folders: tuple[str, ...]
    url: str
    suffixes: tuple[str, ...] = ("",)


def present_file(source: DataSource, folder: Path, file: str) -> Path | None:
    """The first of `file`'s allowed spellings that is there, or None."""
    return next((path for ending in source.suffixes if (path := folder / (file + ending)).is_file()), None)


def find_folder(source: DataSource, root: str | Path) -> Path | None:
    """The first folder that holds every file of `source`, or None.

    Args:
        source: the files and folders to look for.
        root: folder that `source.folders` are relative to.

    Example:
        >>> find_folder(DataSource("mnist", ("t10k",), (".",), "https://example.org"), "/nowhere") is None
        True
    """
    for folder in (Path(root) / folder for folder in source.folders):
        if all(present_file(source, folder, file) for file in source.files):
            return folder
    return None


def missing_data_error(source: DataSource, root: str | Path, reason: str | None = None) -> MissingDataError:
    """The one message for missing files: which, where they were looked for, and the ways to get them.

    Args:
        source: the files and folders that were looked for.
        root: folder that `source.folders` are relative to.
        reason: what else went wrong, such as a failed download.
    """
    endings = " or ".join(ending or "as it is" for ending in source.suffixes)
    lines = [f"{source.name}: data files are missing.", *([reason] if reason else [])]
    lines += [f"Needed, all in one folder (each {endings}): " + ", ".join(source.files)]
    lines += ["Looked in:", *(f"  {_verdict(source, (Path(root) / folder).resolve())}" for folder in source.folders)]
    lines += [
        "To get them, either",
        f"  - let the run download them with data.download=true (from {source.url}), or",
        "  - point at a folder that has them with data.root=/path/to/folder.",
    ]
    return MissingDataError("\n".join(lines))


def _verdict(source: DataSource, folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: no such folder"
    lacking = [file for file in source.files if present_file(source, folder, file) is None]
    return f"{folder}: lacks " + (", ".join(lacking) if len(lacking) < len(source.files) else "all of them")


def find_or_download(source: DataSource, root: str | Path, *, download: bool, fetch: Callable[[Path], object]) -> Path:
    """The folder that holds every file of `source`, downloaded first where allowed and needed.

    Args:
        source: the files and folders to look for.
        root: folder that `source.folders` are relative to; written to only by a download.
        download: whether `fetch` may be called when files are missing.
        fetch: gets the files from the network into the root it is given.

    Raises:
        MissingDataError: the files are not there, or the download failed.
    """
    folder = find_folder(source, root)
    if folder is None and download:
        try:
            fetch(Path(root))
        except (OSError, RuntimeError) as error:  # URLError is an OSError; torchvision raises RuntimeError
            raise missing_data_error(source, root, f"The download failed: {error}") from error
        folder = find_folder(source, root)
    if folder is None:
        raise missing_data_error(source, root)
    return folder

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "../shared/data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the repository; tests that need it are skipped without it."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the real data in {SHARED}")
    return SHARED.resolve()


def listing(root: Path) -> list[tuple[str, int, int]]:
    """Every file under a folder with its size and time, to show that nothing was written."""
    stats = ((path, path.stat()) for path in sorted(root.rglob("*")))
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]


@pytest.fixture
def unchanged():
    return listing

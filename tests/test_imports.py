"""Who may import whom (README, Where things live)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "gradient_disclosure"
PACKAGE = "gradient_disclosure"
NUMERICS = {"torch", "numpy", "scipy"}
STANDARD = {
    "__future__", "abc", "collections", "contextlib", "copy", "dataclasses", "fnmatch", "functools", "importlib",
    "inspect", "itertools", "logging", "math", "pathlib", "random", "sys", "time", "types", "typing", "weakref",
}  # fmt: skip

EVERYWHERE_FORBIDDEN = {"hydra", "omegaconf", "pytorch_lightning"}
ONLY_IN = {
    "opacus": "defenses/dp_sgd",
    "wandb": "reporting/wandb_",
    "lpips": "attacks/reconstruction/perceptual",
    "jinja2": "reporting/",
    "matplotlib": "reporting/",
}
FORBIDDEN_IN = {
    "ledger.py": {"lightning", f"{PACKAGE}.callbacks", f"{PACKAGE}.training", f"{PACKAGE}.reporting"},
    "attacks/": {"lightning", f"{PACKAGE}.defenses", f"{PACKAGE}.callbacks", f"{PACKAGE}.training"},
    "gram/": {"lightning", f"{PACKAGE}.ledger", f"{PACKAGE}.scores", f"{PACKAGE}.callbacks"},
    "scores/": {"lightning", f"{PACKAGE}.ledger", f"{PACKAGE}.gram", f"{PACKAGE}.callbacks"},
    "data/": {f"{PACKAGE}.training", f"{PACKAGE}.models", f"{PACKAGE}.defenses"},
    "models/": {f"{PACKAGE}.training", f"{PACKAGE}.defenses", f"{PACKAGE}.callbacks"},
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: import absolutely"
            yield node.module


FILES = [path.relative_to(SRC).as_posix() for path in sorted(SRC.rglob("*.py"))]


@pytest.mark.parametrize("name", FILES)
def test_layers(name: str) -> None:
    used = set(imports(SRC / name))
    tops = {module.split(".")[0] for module in used}
    assert not tops & EVERYWHERE_FORBIDDEN
    for package, home in ONLY_IN.items():
        assert package not in tops or name.startswith(home), f"{package} belongs into {home}*"
    for place, forbidden in FORBIDDEN_IN.items():
        if name.startswith(place):
            bad = {m for m in used for f in forbidden if m == f or m.startswith(f + ".")}
            assert not bad, f"{name} must not import {bad}"
    if name.startswith(("gram/", "scores/")):
        assert tops <= NUMERICS | STANDARD | {PACKAGE}

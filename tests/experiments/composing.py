"""Composing the project's config in a test."""

from __future__ import annotations

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

import experiments.run  # noqa: F401  (registers the resolvers of the config)

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
SHARED = ROOT.parent / "shared" / "data"


def names(group: str) -> list[str]:
    """The choices of a config group."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def composed(*overrides: str) -> DictConfig:
    """The config of ``python -m experiments.run ...``."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("config", overrides=list(overrides))

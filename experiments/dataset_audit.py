"""Exact GNQ among ALL examples of the pool, at one state of the weights: ``python -m experiments.dataset_audit``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

import experiments.run  # noqa: F401  (registers the resolvers of the config)
from experiments.dataset_scopes import write_agreement
from experiments.settings import identity, run_settings
from gradient_disclosure.data.bundle import Examples
from gradient_disclosure.dataset_audit import DatasetAudit, DatasetAuditSettings, audit_dataset
from gradient_disclosure.dataset_audit.store import remove_tiles
from gradient_disclosure.errors import DisclosureError, RunFolderError, UnsupportedTrainingError
from gradient_disclosure.pipeline.folder import fingerprint
from gradient_disclosure.scores.gnq import Damping
from gradient_disclosure.training.fit import FINISHED, TrainedModel, Watch, train
from gradient_disclosure.training.recipe import target_members

logger = logging.getLogger("gradient_disclosure")

CONF = Path(__file__).resolve().parents[1] / "conf"
CAPTURE_BATCH = 500
FINAL = "final"


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit a finished run's checkpoint, or a model trained for it.

    Args:
        arguments: command-line arguments; None takes those of the process.

    Returns:
        Exit code: 0, or 2 after an error, which is printed.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        audit = run_audit(options)
    except (DisclosureError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    for name, value in audit.summary().items():
        print(f"{name:24} {value:.6g}" if isinstance(value, float) else f"{name:24} {value}")
    return 0


def run_audit(options: argparse.Namespace) -> DatasetAudit:
    """Everything the command does.

    Raises:
        DisclosureError: the message says what was wrong and what to do.
    """
    config = _config(options.run, options.overrides)
    settings = run_settings(config)
    recipe, out = settings.recipe, options.out
    scratch = options.scratch or out / "tiles"
    damping = damping_of(config, len(recipe.data.pool), options.damping, relative=options.relative)
    model_folder = options.run / "target" if options.run else out / f"target-{fingerprint(identity(config))}"
    if options.run and not (model_folder / FINISHED).exists():
        raise RunFolderError(f"{options.run} holds no finished training ({model_folder / FINISHED} is missing)")
    members = target_members(len(recipe.data.pool), recipe.audit.membership_prior, settings.seed)
    trained = train(recipe, members, settings.seed, model_folder, Watch(moments={"init": 0}))
    module = at_moment(trained, options.moment)
    audit = audit_dataset(
        module, batches_of(recipe.data.pool), scratch, DatasetAuditSettings(damping, options.tile), _progress()
    )
    audit.save(out)
    logger.info("scores: %s", out)
    if options.batch_sizes:
        write_agreement(module, recipe.data.pool, audit, options.batch_sizes, settings.seed, out)
    if not options.keep_tiles:
        remove_tiles(scratch)
    return audit


def damping_of(config: DictConfig, pool_size: int, asked: float | None, *, relative: bool) -> Damping:
    """λ in units of the sum over the data set: the one asked for, or the run's own, converted.

    Raises:
        UnsupportedTrainingError: the run's own says nothing about raw gradients (DP-SGD), or none was used.
    """
    if asked is not None:
        return Damping(asked, "relative" if relative else "absolute")
    if str(OmegaConf.select(config, "defense._target_")).endswith(".DPSGD") or config.audit.inverse != "damped":
        raise UnsupportedTrainingError(
            "the in-run audit of this run has no damping of raw gradients: DP-SGD's noise or a pseudo-inverse takes "
            "its place. Give --damping, in units of the sum over the whole pool. Scores are of raw gradients."
        )
    own, p = config.audit.damping, config.training.batch_size / pool_size
    return Damping(own.value / (p if config.audit.scope == "batch" else 1.0), own.kind)


def batches_of(pool: Examples) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The pool in order, as batches (inputs, labels, index)."""
    index = torch.arange(len(pool))
    return [(pool.inputs[rows], pool.labels[rows], rows) for rows in index.split(CAPTURE_BATCH)]


def at_moment(trained: TrainedModel, moment: str) -> torch.nn.Module:
    """The model with the weights it had then.

    Raises:
        RunFolderError: no weights were kept of that moment.
    """
    if moment != FINAL:
        if moment not in trained.snapshots:
            raise RunFolderError(
                f"no weights were kept of the moment {moment!r}; kept: {', '.join((*trained.snapshots, FINAL))}"
            )
        trained.module.load_state_dict(trained.snapshots[moment])
    return trained.module


def _config(run: Path | None, overrides: Sequence[str]) -> DictConfig:
    if run is None:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            return compose("config", overrides=list(overrides))
    if overrides:
        raise UnsupportedTrainingError("--run takes the run's own config: leave out " + " ".join(overrides))
    if not (run / "config.yaml").is_file():
        raise RunFolderError(f"{run} is no folder of a run: config.yaml is missing")
    config = OmegaConf.load(run / "config.yaml")
    assert isinstance(config, DictConfig)
    return config


def _progress(every: float = 30.0) -> Callable[[str, float], None]:
    """Log at most one line in so many seconds."""
    start, last = time.monotonic(), [0.0]

    def on_step(name: str, fraction: float) -> None:
        now = time.monotonic()
        if now - last[0] >= every:
            last[0] = now
            logger.info("%5.1f %% after %.1f minutes, finished %s", 100 * fraction, (now - start) / 60, name)

    return on_step


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.dataset_audit",
        description="Exact gradient uniqueness of every example of the pool among ALL of them, at one state of the "
        "weights (scope 'dataset'). Killed and started again with the same arguments, it goes on where it was.",
    )
    add: Any = parser.add_argument
    add("overrides", nargs="*", metavar="key=value", help="train with this config, as experiments.run takes it")
    add("--run", type=Path, metavar="FOLDER", help="audit the model of this finished run instead of training one")
    add("--moment", default=FINAL, help="weights to audit: init, early (of --run, if kept) or final (default)")
    add("--out", type=Path, required=True, metavar="FOLDER", help="where scores, settings and costs are written")
    add("--scratch", type=Path, metavar="FOLDER", help="for 4 N² bytes of tiles; OUT/tiles by default")
    add("--damping", type=float, metavar="λ", help="in units of the sum over the pool; default: the run's own, N/b "
        "times that of a batch")  # fmt: skip
    add("--relative", action="store_true", help="--damping times the mean squared gradient norm of the pool")
    add("--tile", type=int, default=2000, help="examples along one side of a tile (default 2000)")
    add("--threads", type=int, metavar="N", help="of torch; all cores by default")
    add("--batch-sizes", type=int, nargs="+", default=[], metavar="B", help="also compare with the scopes 'batch' and "
        "'universe_proxy' at these batch sizes: a table and a figure")  # fmt: skip
    add("--keep-tiles", action="store_true", help="do not delete the tiles when done")
    return parser


if __name__ == "__main__":
    sys.exit(main())

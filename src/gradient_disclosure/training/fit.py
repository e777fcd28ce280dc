"""The one training function: targets and shadow models, defended or not, fresh or resumed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from torch import Tensor

from gradient_disclosure.callbacks.exact_resume import ExactResume
from gradient_disclosure.callbacks.gradient_uniqueness import GradientUniqueness
from gradient_disclosure.callbacks.progress import StepReporter
from gradient_disclosure.callbacks.snapshots import Weights, WeightSnapshots, copy_of_weights
from gradient_disclosure.callbacks.stopwatch import Stopwatch
from gradient_disclosure.files import load_state, make_folder, save_state
from gradient_disclosure.ledger import DisclosureLedger
from gradient_disclosure.models.classifier import ClassifierModule
from gradient_disclosure.training.batches import derived_seed
from gradient_disclosure.training.defense import AuditRequest, audit_of
from gradient_disclosure.training.loader import BatchLoader
from gradient_disclosure.training.recipe import TrainingRecipe

logger = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.ckpt"
FINISHED = "trained.pt"


@dataclass(frozen=True)
class Watch:
    """What is observed of one training; none of it changes the weights.

    Attributes:
        audited: keep a disclosure ledger even if the defense does not need one.
        moments: name → number of steps done at which the weights are copied.
        loggers: Lightning loggers.
        on_step: called with (steps done, steps in all) after each step.
    """

    audited: bool = False
    moments: Mapping[str, int] | None = None
    loggers: Sequence[Logger] = ()
    on_step: Callable[[int, int], None] | None = None


@dataclass(frozen=True)
class TrainedModel:
    """A finished training.

    Attributes:
        module: the model, with its final weights.
        ledger: what each member disclosed; None if the training was not audited.
        audit: averages over the audited steps (damping, relative_damping, effective_rank), the coverage, and what the
            audit has seen (every_n_steps, audited_steps, parameters_covered, parameters_trainable).
        defense: what the defense reports of itself.
        snapshots: weights at the moments asked for.
        steps: optimizer steps taken.
        seconds: wall time of the training.
    """

    module: ClassifierModule
    ledger: DisclosureLedger | None
    audit: Mapping[str, float | None]
    defense: Mapping[str, float | int | str | None]
    snapshots: Mapping[str, Weights]
    steps: int
    seconds: float


def train(recipe: TrainingRecipe, members: Tensor, seed: int, folder: Path, watch: Watch | None = None) -> TrainedModel:
    """Train one model on ``members``, or go on with what ``folder`` holds.

    A training killed at any point and called again with the same arguments ends bitwise as one that was not: it
    continues from its last checkpoint. A finished one is read back.

    Args:
        recipe: how to train.
        members: (n,) int64 pool indices.
        seed: of initialization, batches, noise and every other random choice.
        folder: where checkpoints and the result are kept; created if missing.
        watch: what to observe; nothing by default.

    Returns:
        The trained model.

    Raises:
        RunFolderError: the folder cannot be written.
        UnsupportedTrainingError: the defense refuses the set-up.
    """
    watch = watch if watch is not None else Watch()
    make_folder(folder)
    pl.seed_everything(derived_seed("training", seed) % 2**32, verbose=False)
    module = recipe.module()
    if (folder / FINISHED).exists():
        return _restored(module, load_state(folder / FINISHED))
    request = AuditRequest(recipe.audit, len(recipe.data.pool), watch.audited, seed)
    defense_callbacks = recipe.defense.callbacks(request)
    snapshots, stopwatch = WeightSnapshots(watch.moments or {}), Stopwatch()
    reporters = [] if watch.on_step is None else [StepReporter(watch.on_step)]
    callbacks = [ExactResume(), *defense_callbacks, snapshots, stopwatch, *reporters]
    trainer = _trainer(recipe, folder, watch, callbacks)
    loader = BatchLoader(recipe.data.pool, recipe.defense.plan(members, recipe.batch_size, seed))
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists():
        logger.info("going on from the last checkpoint in %s", folder)
    trainer.fit(module, loader, ckpt_path=checkpoint if checkpoint.exists() else None, weights_only=True)
    result = _result(recipe, module, defense_callbacks, snapshots, trainer.global_step, stopwatch.seconds)
    save_state(_state(result), folder / FINISHED)
    checkpoint.unlink(missing_ok=True)
    return result


def _trainer(recipe: TrainingRecipe, folder: Path, watch: Watch, callbacks: list[Callback]) -> pl.Trainer:
    checkpoints = ModelCheckpoint(
        dirpath=folder,
        filename=Path(CHECKPOINT).stem,
        every_n_train_steps=recipe.checkpoint_every_n_steps,
        save_top_k=1,
        enable_version_counter=False,
    )
    return pl.Trainer(
        max_epochs=recipe.epochs,
        accelerator=recipe.accelerator,
        devices=1,
        callbacks=[*callbacks, checkpoints],
        logger=list(watch.loggers) or False,
        log_every_n_steps=10,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
    )


def _result(
    recipe: TrainingRecipe,
    module: ClassifierModule,
    callbacks: Sequence[Callback],
    snapshots: WeightSnapshots,
    steps: int,
    seconds: float,
) -> TrainedModel:
    audit = audit_of(callbacks)
    module.cpu().eval()
    return TrainedModel(
        module=module,
        ledger=None if audit is None else audit.ledger,
        audit={} if audit is None else {**audit.statistics.means(), "coverage": audit.coverage, **_seen(audit)},
        defense=dict(recipe.defense.summary(callbacks)),
        snapshots=snapshots.snapshots,
        steps=steps,
        seconds=seconds,
    )


def _seen(audit: GradientUniqueness) -> dict[str, float | None]:
    """How much of the training was audited; parameters are unknown if no step was."""
    extent, steps = audit.extent, audit.statistics
    return {
        "every_n_steps": audit.ledger.every_n_steps,
        "audited_steps": steps.steps + steps.zero_steps,
        "parameters_covered": None if extent is None else extent.covered,
        "parameters_trainable": None if extent is None else extent.trainable,
    }


def _state(result: TrainedModel) -> dict[str, Any]:
    return {
        "module": copy_of_weights(result.module),
        "ledger": None if result.ledger is None else result.ledger.state_dict(),
        "audit": dict(result.audit),
        "defense": dict(result.defense),
        "snapshots": dict(result.snapshots),
        "steps": result.steps,
        "seconds": result.seconds,
    }


def _restored(module: ClassifierModule, state: dict[str, Any]) -> TrainedModel:
    module.load_state_dict(state["module"])
    ledger = None
    if state["ledger"] is not None:
        ledger = DisclosureLedger()
        ledger.load_state_dict(state["ledger"])
    module.eval()
    rest = {key: state[key] for key in ("audit", "defense", "snapshots", "steps", "seconds")}
    return TrainedModel(module=module, ledger=ledger, **rest)

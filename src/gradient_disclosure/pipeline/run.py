"""One run from settings to record: train, audit, attack."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.loggers import Logger
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from gradient_disclosure.files import load_state, save_state
from gradient_disclosure.pipeline.membership import membership_results, membership_scores
from gradient_disclosure.pipeline.overhead import audit_overhead
from gradient_disclosure.pipeline.reconstruction import (
    attacked_members,
    early_moment,
    observations,
    reconstruct,
    reconstruction_results,
)
from gradient_disclosure.pipeline.results import (
    defense_results,
    disclosure_results,
    example_table,
    known_others_results,
    meta_results,
    utility_results,
)
from gradient_disclosure.pipeline.settings import RunSettings
from gradient_disclosure.reporting.record import ReconstructionRecord, RunRecord, Value
from gradient_disclosure.training.cohort import ShadowCohort, train_cohort
from gradient_disclosure.training.fit import TrainedModel, Watch, train
from gradient_disclosure.training.recipe import target_members


class Clock:
    """Seconds each stage took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """The time since the last lap belongs to ``stage``."""
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now


def run(
    settings: RunSettings, folder: Path, *, loggers: Sequence[Logger] = (), show_progress: bool = True
) -> RunRecord:
    """Train the target, audit it in-run, attack it, and collect every number.

    What is finished in ``folder`` is read back, so that a killed run continues where it was.

    Args:
        settings: the run.
        folder: where models in progress are kept.
        loggers: Lightning loggers of the target's training.
        show_progress: progress bars.

    Returns:
        Everything a report is made from.
    """
    recipe, clock = settings.recipe, Clock()
    pool_size = len(recipe.data.pool)
    members = target_members(pool_size, recipe.audit.membership_prior, settings.seed)
    with _progress(show_progress) as progress:
        target = _target(settings, members, folder, loggers, progress)
        clock.lap("target")
        cohort = _cohort(settings, folder, progress)
        clock.lap("cohort")
        scores = membership_scores(recipe, target, cohort)
        frame = example_table(settings, target, members, scores)
        task = progress.add_task("membership attacks", total=len(scores))
        attack_results = membership_results(
            scores,
            frame,
            bootstrap=settings.membership.bootstrap,
            seed=settings.seed,
            on_attack=lambda: progress.advance(task),
        )
        clock.lap("membership")
        records = _reconstructions(settings, target, members, folder, progress, clock)
    results: dict[str, Value] = {
        **utility_results(settings, target, members),
        **disclosure_results(settings, target, frame, settings.seed),
        **defense_results(settings, target),
        **known_others_results(target, frame),
        **attack_results,
        **reconstruction_results(settings, records),
        **_costs(settings, target, cohort, clock),
        **{f"setting/{key}": value for key, value in settings.description.items()},
        **meta_results(),
    }
    data = recipe.data
    images = data.pool.inputs if data.spec.kind == "image" else None
    return RunRecord(results, frame, images, data.value_range, data.class_names, tuple(records))


def _target(
    settings: RunSettings, members: Tensor, folder: Path, loggers: Sequence[Logger], progress: Progress
) -> TrainedModel:
    task = progress.add_task("target, audited", total=None)
    moments = {"init": 0, **early_moment(settings)}
    watch = Watch(True, moments, loggers, lambda done, total: progress.update(task, completed=done, total=total))
    target = train(settings.recipe, members, settings.seed, folder / "target", watch)
    progress.update(task, completed=target.steps, total=target.steps)
    return target


def _cohort(settings: RunSettings, folder: Path, progress: Progress) -> ShadowCohort | None:
    count = settings.membership.shadow_models
    if count == 0:
        return None
    task = progress.add_task("shadow models", total=count)
    return train_cohort(settings.recipe, count, settings.seed, folder / "shadows", lambda: progress.advance(task))


def _reconstructions(
    settings: RunSettings, target: TrainedModel, members: Tensor, folder: Path, progress: Progress, clock: Clock
) -> list[ReconstructionRecord]:
    if settings.recipe.data.spec.kind != "image" or not settings.reconstruction.attacks:
        return []
    stored = folder / "reconstructions.pt"
    if stored.exists():
        state = load_state(stored)
        clock.seconds["reconstruction"] = state["seconds"]
        return [ReconstructionRecord(**record) for record in state["records"]]
    seen = observations(settings, target, attacked_members(members, settings.reconstruction.examples, settings.seed))
    task = progress.add_task("gradient reconstructions", total=len(seen) * len(settings.reconstruction.attacks))
    records = reconstruct(settings, seen, lambda: progress.advance(task))
    clock.lap("reconstruction")
    seconds = clock.seconds["reconstruction"]
    save_state({"records": [dict(vars(record)) for record in records], "seconds": seconds}, stored)
    return records


def _costs(settings: RunSettings, target: TrainedModel, cohort: ShadowCohort | None, clock: Clock) -> dict[str, Value]:
    """Seconds of each stage, whenever it was done: the total of a resumed run adds up what its parts took."""
    stages = {
        "cost/train_seconds": target.seconds,
        "cost/cohort_seconds": None if cohort is None else cohort.seconds,
        "cost/membership_seconds": clock.seconds["membership"],
        "cost/reconstruction_seconds": clock.seconds.get("reconstruction"),
    }
    total = sum(seconds for seconds in stages.values() if seconds is not None)
    return {**stages, "cost/total_seconds": total, "cost/audit_overhead": audit_overhead(settings.recipe)}


def _progress(show: bool) -> Progress:
    columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, disable=not show)

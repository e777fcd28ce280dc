"""The exact audit of a whole data set at one state of the weights: blockwise, on disk, resumable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradient_disclosure.dataset_audit.capture import batch_terms, terms_by_tile
from gradient_disclosure.dataset_audit.cost import CostEstimate, measured_flops_per_second, refuse_what_does_not_fit
from gradient_disclosure.dataset_audit.cross_gram import cross_gram
from gradient_disclosure.dataset_audit.identity import Survey, model_checksum, survey
from gradient_disclosure.dataset_audit.result import DatasetAudit
from gradient_disclosure.dataset_audit.settings import DatasetAuditSettings
from gradient_disclosure.dataset_audit.store import TileStore
from gradient_disclosure.dataset_audit.stored_terms import bytes_of, load_norms, load_terms, save_terms
from gradient_disclosure.dataset_audit.tiled_inverse import (
    factor_diagonal_tile,
    factor_tile,
    inverse_tails,
    pivot_excess,
)
from gradient_disclosure.dataset_audit.tiling import Tiling
from gradient_disclosure.errors import NonFiniteGradientError
from gradient_disclosure.files import write_atomically
from gradient_disclosure.scores.gnq import GnqResult, scores_of_leverage
from gradient_disclosure.scores.scope import DATASET

logger = logging.getLogger(__name__)

FORMAT = 1
OnStep = Callable[[str, float], None]
"""(name of a step that is finished, fraction of the work done)."""


def audit_dataset(
    module: nn.Module,
    batches: Iterable[Any],
    folder: Path,
    settings: DatasetAuditSettings | None = None,
    on_step: OnStep | None = None,
) -> DatasetAudit:
    """Gradient uniqueness of every example among ALL N examples, exactly, at the weights that ``module`` has now.

    ``GNQ_j = g_jᵀ (Σ_{k≠j} g_k g_kᵀ + λI)⁻¹ g_j``, the sum over all other examples of the data set: the definition
    without a batch in its place. Solved in float64 from the N×N Gram matrix, of which one tile at a time is formed, by
    a Cholesky factor in tiles on disk: 4N² bytes, 2N³/3 flops, N · tile · 8 bytes of memory. The same call after a
    kill goes on where it was.

    Args:
        module: the model; looked at in evaluation mode (dropout off), and left as it was.
        batches: batches of all examples, re-readable and in a fixed order (a list, a DataLoader without shuffling).
        folder: for the tiles, may be deleted afterwards; one audit each.
        settings: damping, size of tiles, losses and ids.
        on_step: called after each finished step.

    Returns:
        Scores of all examples, with scope "dataset".

    Raises:
        DisclosureError: data, model or folder cannot be used, or do not belong to the audit begun in ``folder``; not
            enough disk or memory.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(12, 3), torch.arange(12) % 2
        >>> batches = [(x[rows], y[rows], rows) for rows in torch.arange(12).split(4)]
        >>> with TemporaryDirectory() as scratch:
        ...     audit = audit_dataset(model, batches, Path(scratch), DatasetAuditSettings(tile=5))
        >>> audit.result.scores.shape, audit.result.scope
        (torch.Size([12]), 'dataset')
    """
    settings = settings or DatasetAuditSettings()
    found = survey(batches, settings.example_ids)
    tiling = Tiling(found.ids.numel(), settings.tile)
    terms, losses, coverage = batch_terms(module, found.first_batch, settings)
    model = model_checksum(module)
    with TileStore(folder, _identity(model, found, settings, losses)) as store:
        speed = measured_flops_per_second(tiling.tile)
        estimate = CostEstimate.of(tiling, bytes_of(terms) / max(1, len(losses)), speed)
        logger.info("%s, in %s", estimate, folder)
        refuse_what_does_not_fit(estimate, folder, store.bytes)
        steps = _Steps(store, tiling, on_step)
        _capture(steps, module, batches, found.ids, settings)
        norms = torch.cat([load_norms(store.path(_gradients(k))) for k in range(tiling.count)])
        damping = settings.damping.of(norms.mean().reshape(1, 1))
        for i in range(tiling.count):
            _factor_row(steps, i, norms, damping)
        for j in range(tiling.count):
            _inverse_column(steps, j)
        result = _scores(steps, norms, damping)
        return DatasetAudit(
            found.ids,
            result,
            settings.damping,
            tiling.tile,
            coverage,
            store.seconds,
            store.cpu_seconds,
            store.peak_memory,
            store.bytes,
            model,
            found.checksum,
        )


def _identity(model: str, found: Survey, settings: DatasetAuditSettings, losses: Tensor) -> dict[str, Any]:
    """What the tiles depend on. The losses of the first batch stand for the function that computes them."""
    return {
        "format": FORMAT,
        "model": model,
        "data": found.checksum,
        "examples": found.ids.numel(),
        "tile": settings.tile,
        "damping": settings.damping.value,
        "damping_kind": settings.damping.kind,
        "exclude": list(settings.exclude),
        "measured_loss": float(losses.double().sum()),
    }


@dataclass
class _Steps:
    """The steps of one audit: what is finished, and how much work that is."""

    store: TileStore
    tiling: Tiling
    on_step: OnStep | None
    work_done: float = 0.0

    def done(self, name: str, work: float) -> None:
        """A step is finished, now or before."""
        self.work_done += work
        if self.on_step is not None:
            n = self.tiling.count
            self.on_step(name, self.work_done / (n * (n + 1) * (2 * n + 1) / 6))


def _gradients(k: int) -> str:
    return f"gradients-{k:05d}.safetensors"


def _factor(i: int, j: int) -> str:
    return f"factor-{i:05d}-{j:05d}.npy"


def _pivots(i: int) -> str:
    return f"pivots-{i:05d}.npy"


def _tails(j: int) -> str:
    return f"tails-{j:05d}.npy"


def _capture(
    steps: _Steps, module: nn.Module, batches: Iterable[Any], ids: Tensor, settings: DatasetAuditSettings
) -> None:
    """Keep the gradients of each tile that is not finished."""
    store, tiling = steps.store, steps.tiling
    wanted = {k for k in range(tiling.count) if _gradients(k) not in store}
    for k, terms in terms_by_tile(module, batches, ids, tiling, wanted, settings) if wanted else ():
        path = store.path(_gradients(k))
        write_atomically(path, partial(save_terms, terms=terms, size=tiling.length(k)))
        bad = ids[slice(*tiling.span(k))][~torch.isfinite(load_norms(path))]
        if bad.numel():
            raise NonFiniteGradientError(f"NaN or infinity in the gradients of the examples {bad[:10].tolist()}")
        store.record(_gradients(k))
        steps.done(_gradients(k), 0.0)


def _factor_row(steps: _Steps, i: int, norms: Tensor, damping: float) -> None:
    """Make the tiles of row i of the factor that are not finished, and what it leaves of each norm."""
    store, tiling = steps.store, steps.tiling
    if _pivots(i) in store and all(_factor(i, j) in store for j in range(i + 1)):
        steps.work_done += sum(j + 0.5 for j in range(i + 1))
        return
    here, row = load_terms(store.path(_gradients(i))), list[Tensor]()
    for j in range(i + 1):
        name = _factor(i, j)
        if name in store:
            tile = store.get(name)
            steps.work_done += j + 0.5
        else:
            there = here if i == j else load_terms(store.path(_gradients(j)))
            gram = cross_gram(here, there, (tiling.length(i), tiling.length(j)))
            if i == j:
                tile = factor_diagonal_tile(gram, row, damping)
            else:
                column = (store.get(_factor(j, k)) for k in range(j))
                tile = factor_tile(gram, row, column, store.get(_factor(j, j)))
            store.put(name, tile)
            steps.done(name, j + 0.5)
        if j < i:
            row.append(tile)
    if _pivots(i) in store:
        return
    excess = pivot_excess(norms[slice(*tiling.span(i))], row, tile)
    store.put(_pivots(i), torch.stack([excess, tile.diagonal().square()]))
    steps.done(_pivots(i), 0.0)


def _inverse_column(steps: _Steps, j: int) -> None:
    """Square and add up column j of the factor's inverse."""
    store, tiling = steps.store, steps.tiling
    work = sum(i - j + 0.5 for i in range(j, tiling.count))
    if _tails(j) in store:
        steps.work_done += work
        return
    tails = inverse_tails(j, tiling.count, lambda i, k: store.get(_factor(i, k)))
    store.put(_tails(j), tails)
    steps.done(_tails(j), work)


def _scores(steps: _Steps, norms: Tensor, damping: float) -> GnqResult:
    """GNQ from pivots and tails: ``M_jj = 1/L_jj² + tail_j`` and ``h_j = d_j/L_jj² − λ tail_j``.

    The second, equal to ``1 − λ M_jj``, has no term of the size of 1 where the gradient is small: ``d_j``, the squared
    entries of its row of L and its tail are all of the size of ‖g_j‖²/λ.
    """
    count, store = steps.tiling.count, steps.store
    excess, pivots = torch.cat([store.get(_pivots(k)) for k in range(count)], dim=1)
    tails = torch.cat([store.get(_tails(k)) for k in range(count)])
    leverage = excess / pivots - damping * tails
    rest = damping * (1.0 / pivots + tails)
    return GnqResult(scores_of_leverage(leverage, rest), leverage.clamp(min=0.0), norms, damping, scope=DATASET)

"""Agreement of the scopes 'batch', 'universe_proxy' and 'dataset': ``python -m experiments.dataset_scopes FOLDER``."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from gradient_disclosure.data.bundle import Examples
from gradient_disclosure.dataset_audit import DatasetAudit
from gradient_disclosure.dataset_audit.batch_scopes import agreement, batch_scores
from gradient_disclosure.errors import DisclosureError, RunFolderError
from gradient_disclosure.files import write_bytes, write_parquet, write_text
from gradient_disclosure.reporting.figures.scopes import scope_agreement
from gradient_disclosure.reporting.figures.style import png

logger = logging.getLogger("gradient_disclosure")

BATCH_DAMPING = 0.01
"""λ of the scope "batch": the project's default, in units of a batch, whatever its size."""
SCOPES, AGREEMENT, FIGURE = "scopes.parquet", "agreement.json", "scopes.png"
CHEAPER = ("batch", "universe_proxy")


def write_agreement(
    module: torch.nn.Module, pool: Examples, audit: DatasetAudit, batch_sizes: Sequence[int], seed: int, out: Path
) -> None:
    """Score the pool in batches at the same weights, and write scores, agreement and figure into ``out``."""
    exact = audit.table().sort_values("index", ignore_index=True)
    table = exact.rename(columns={"gnq": "dataset"})[["index", "dataset", "squared_norm"]]
    for size in batch_sizes:
        scores = batch_scores(module, (pool.inputs, pool.labels), size, audit.result.damping, BATCH_DAMPING, seed)
        assert scores["index"].equals(table["index"])
        for name in CHEAPER:
            table[f"{name}_{size}"] = scores[name]
        logger.info("scored in batches of %d", size)
    write_parquet(table, out / SCOPES)
    draw(out)


def draw(folder: Path) -> None:
    """Agreement and figure from the scores in ``folder``.

    Raises:
        RunFolderError: there are none.
    """
    if not (folder / SCOPES).is_file():
        raise RunFolderError(f"{folder} holds no {SCOPES}: run experiments.dataset_audit with --batch-sizes first")
    table, summary = pd.read_parquet(folder / SCOPES), DatasetAudit.load(folder).summary()
    exact = torch.tensor(table["dataset"].to_numpy())
    columns = [name for name in table.columns if name not in ("index", "dataset")]
    found: dict[str, Any] = {name: asdict(agreement(torch.tensor(table[name].to_numpy()), exact)) for name in columns}
    write_text(folder / AGREEMENT, json.dumps(found, indent=2) + "\n")
    figure = scope_agreement(table, found, damping=float(summary["damping"] or 0), batch_damping=BATCH_DAMPING)
    write_bytes(folder / FIGURE, png(figure))
    logger.info("agreement: %s and %s", folder / AGREEMENT, folder / FIGURE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the figure again from saved scores.

    Args:
        arguments: command-line arguments; None takes those of the process.

    Returns:
        Exit code: 0, or 2 after an error, which is printed.
    """
    parser = argparse.ArgumentParser(prog="python -m experiments.dataset_scopes", description=__doc__)
    parser.add_argument("folder", type=Path, help="OUT of experiments.dataset_audit --batch-sizes ...")
    folder = parser.parse_args(arguments).folder
    try:
        draw(folder)
    except DisclosureError as error:
        print(error, file=sys.stderr)
        return 2
    print(folder / FIGURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())

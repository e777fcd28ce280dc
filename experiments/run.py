"""Train, audit, attack, report: ``python -m experiments.run [+defense=NAME] [key=value ...]``."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import warnings
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.settings import identity, is_used, run_settings
from gradient_disclosure.files import write_json, write_text
from gradient_disclosure.pipeline.folder import RESULTS, claim, fingerprint, finished_twin
from gradient_disclosure.pipeline.run import run
from gradient_disclosure.reporting.report import write_report
from gradient_disclosure.reporting.table import console_table

logger = logging.getLogger("gradient_disclosure")

OmegaConf.register_new_resolver("run_name", lambda overrides: overrides or "undefended", replace=True)


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config: DictConfig) -> float | None:
    """One job: make a run, or read back one that is finished; the test accuracy goes to Hydra's optimizing sweepers."""
    _quiet()
    folder = Path(HydraConfig.get().runtime.output_dir)
    number = fingerprint(identity(config))
    if config.fresh:
        _empty(folder)
    claim(folder, number)
    if not is_used(config, "epsilon") and config.epsilon is not None:
        logger.warning("epsilon=%s is ignored: the defense takes none", config.epsilon)
    twin = finished_twin(folder, number)
    if not (folder / RESULTS).exists() and twin is not None:
        _copy(twin, folder)
    elif not (folder / RESULTS).exists():
        _run(config, folder, number)
    results: dict[str, Any] = json.loads((folder / RESULTS).read_text())
    console = Console()
    console.print(console_table(results))
    console.print(f"Report: {folder / 'report.html'}")
    accuracy = results.get("utility/test_accuracy")
    return accuracy if isinstance(accuracy, float) else None


def _run(config: DictConfig, folder: Path, number: str) -> None:
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    write_text(folder / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
    record = run(run_settings(config), folder, show_progress=config.report.progress and sys.stderr.isatty())
    results = {**record.results, "meta/fingerprint": number, "meta/started": started}
    write_report(replace(record, results=results), folder)


def _copy(twin: Path, folder: Path) -> None:
    """Take over the outputs of a job of the same sweep that was the same run."""
    logger.info("%s is the same run (what differs is ignored by the defense): its results are taken over", twin.name)
    for name in ("ledger.parquet", "report.html", "config.yaml"):
        shutil.copy2(twin / name, folder / name)
    shutil.copytree(twin / "figures", folder / "figures", dirs_exist_ok=True)
    results = json.loads((twin / RESULTS).read_text())
    write_json(folder / RESULTS, {**results, "meta/copied_from": twin.name})


def _empty(folder: Path) -> None:
    """Remove what an earlier run left; Hydra's own log and config of this job stay."""
    for entry in folder.iterdir():
        if entry.name in (".hydra", "run.log"):
            continue
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _quiet() -> None:
    """Lightning's advice about devices and workers does not apply here and would bury the result."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


if __name__ == "__main__":
    main()

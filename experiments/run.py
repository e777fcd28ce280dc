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
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.settings import identity, is_used, run_settings
from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.files import write_json, write_text
from gradient_disclosure.pipeline.folder import RESULTS, claim, empty, fingerprint, finished_twin
from gradient_disclosure.pipeline.run import run
from gradient_disclosure.reporting.report import write_report
from gradient_disclosure.reporting.table import console_table
from gradient_disclosure.reporting.wandb_run import log_to_wandb

logger = logging.getLogger("gradient_disclosure")

OmegaConf.register_new_resolver("run_name", lambda overrides: overrides.replace("/", "_") or "undefended", replace=True)
OmegaConf.register_new_resolver("unless", lambda value, default: default if value is None else None, replace=True)


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config: DictConfig) -> float | None:
    """One job: make a run, or read back one that is finished; the test accuracy goes to Hydra's optimizing sweepers."""
    _quiet()
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        results = job(config, folder, in_sweep=HydraConfig.get().mode is RunMode.MULTIRUN)
    except DisclosureError as error:
        if HydraConfig.get().mode is RunMode.MULTIRUN:
            raise  # Hydra goes on with the other jobs and tells of this one at the end
        sys.exit(f"{type(error).__name__}: {error}")
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(console_table(results))
    console.print(f"Report: {folder / 'report.html'}", soft_wrap=True)
    accuracy = results.get("utility/test_accuracy")
    return accuracy if isinstance(accuracy, float) else None


def job(config: DictConfig, folder: Path, *, in_sweep: bool = False) -> dict[str, Any]:
    """Make the run that ``config`` describes in ``folder``, unless it is there already; its results.

    Args:
        config: composed from ``conf/``.
        folder: the run's own folder.
        in_sweep: folders beside this one belong to the same sweep, and one that holds the same run may be copied.

    Raises:
        DisclosureError: the message says what was wrong and what to do.
    """
    settings = identity(config)
    number = fingerprint(settings)
    if config.fresh:
        empty(folder)
    claim(folder, number, settings)
    if config.epsilon is not None and not is_used(config, "epsilon"):
        logger.warning("epsilon=%s is ignored: the defense takes none", config.epsilon)
    if (folder / RESULTS).exists():
        logger.info("%s is finished and read back; fresh=true starts it anew", folder)
    elif in_sweep and not config.fresh and (twin := finished_twin(folder, number)) is not None:
        _copy(twin, folder)
    else:
        _run(config, folder, number)
    results: dict[str, Any] = json.loads((folder / RESULTS).read_text())
    return results


def _run(config: DictConfig, folder: Path, number: str) -> None:
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    plain = OmegaConf.to_yaml(config, resolve=True)
    write_text(folder / "config.yaml", plain)
    settings = run_settings(config)
    record = run(settings, folder, show_progress=config.report.progress and sys.stderr.isatty())
    results = {**record.results, "meta/fingerprint": number, "meta/started": started}
    record = replace(record, results=results)

    def publish() -> None:
        log_to_wandb(
            record,
            folder,
            project=config.logger.project,
            mode=config.logger.mode,
            run_id=number,
            share_examples=config.report.share_examples,
            config=OmegaConf.to_container(config, resolve=True),
        )

    write_report(record, folder, publish if config.logger.kind == "wandb" else None)


def _copy(twin: Path, folder: Path) -> None:
    """Take over the outputs of a job of the same sweep that was the same run."""
    logger.info("%s is the same run (what differs is ignored by the defense): its results are taken over", twin.name)
    for name in ("ledger.parquet", "report.html", "config.yaml"):
        shutil.copy2(twin / name, folder / name)
    shutil.copytree(twin / "figures", folder / "figures", dirs_exist_ok=True)
    results = json.loads((twin / RESULTS).read_text())
    write_json(folder / RESULTS, {**results, "meta/copied_from": twin.name})


def _quiet() -> None:
    """Lightning's advice about devices and workers does not apply here and would bury the result."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", message="Full backward hook is firing")  # Opacus, at the first layer; harmless


if __name__ == "__main__":
    main()

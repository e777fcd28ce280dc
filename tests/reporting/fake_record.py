"""A made-up run on real digits: every field filled in a plausible way, without any training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from gradient_disclosure.reporting.record import MOMENTS, ReconstructionRecord, RunRecord, Value

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ATTACKS = ("dlg", "idlg", "inverting_gradients")


def fake_record(
    *, defense: str = "gnq_censor", size: int = 400, seed: int = 0, epsilon: float | None = None
) -> RunRecord:
    """A run whose GNQ follows how unusual an image is, and whose LiRA scores follow GNQ with noise."""
    digits = load_digits()
    images = torch.tensor(digits.images[:size] / 16.0, dtype=torch.float32).unsqueeze(1)
    examples = fake_examples(images, digits.target[:size], seed, censored=defense.endswith("censor"))
    results = fake_results(examples, defense, seed, epsilon)
    return RunRecord(results, examples, images, (0.0, 1.0), NAMES, fake_reconstructions(images, defense, seed))


def tabular_record() -> RunRecord:
    return replace(fake_record(defense="none"), images=None, value_range=None, reconstructions=())


def fake_examples(images: torch.Tensor, labels: np.ndarray, seed: int, *, censored: bool) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    size = len(labels)
    member = rng.permutation(size) < size // 2
    pixels = images.flatten(1).numpy()
    centers = np.stack([pixels[labels == label].mean(0) for label in range(10)])
    unusual = np.linalg.norm(pixels - centers[labels], axis=1)
    gnq = np.exp(3.0 * (unusual - unusual.mean()) + rng.normal(0, 0.5, size) + 2.0)
    uncapped = np.log2(1 + gnq) / 4
    total = np.where(member, gnq, np.nan)
    signal = np.where(member, 0.4 + 0.25 * np.log(gnq), 0.0)
    dropped = member & censored & (gnq > np.quantile(gnq[member], 0.9))

    def member_only(values: np.ndarray) -> np.ndarray:
        return np.where(member, values, np.nan)

    return pd.DataFrame(
        {
            "index": np.arange(size),
            "label": labels,
            "member": member,
            "n_drawn": np.where(member, 20, 0),
            "gnq_total": total,
            "gnq_max": total / 5,
            "squared_norm_total": member_only(gnq**0.7 * np.exp(rng.normal(0, 0.8, size))),
            "bits_paper": member_only(np.minimum(uncapped, 1.0)),
            "bits_paper_uncapped": member_only(uncapped),
            "bits_gaussian": member_only(np.minimum(1.1 * uncapped, 1.0)),
            "bits_gaussian_uncapped": member_only(1.1 * uncapped),
            "bits_cap": member_only(np.ones(size)),
            "at_cap": member & (uncapped >= 1.0),
            "attacker_accuracy_ceiling": member_only(np.minimum(1.0, 0.5 + uncapped / 2)),
            "attacker_tpr_ceiling_at_1pct_fpr": member_only(np.minimum(1.0, 0.01 + uncapped)),
            "censored_at_step": pd.array([17 if flag else None for flag in dropped], dtype="Int64"),
            "lira_online": signal + rng.normal(0, 1, size),
            "lira_offline": 0.7 * signal + rng.normal(0, 1, size),
            "loss_threshold": 0.4 * signal + rng.normal(0, 1, size),
        }
    )


def fake_results(examples: pd.DataFrame, defense: str, seed: int, epsilon: float | None) -> dict[str, Value]:
    members = examples[examples["member"]]
    is_dp = defense == "dp_sgd"
    results: dict[str, Value] = {
        "utility/test_accuracy": 0.883 if is_dp else 0.957,
        "utility/test_loss": 0.41 if is_dp else 0.163,
        "utility/train_accuracy": 0.901 if is_dp else 0.998,
        "disclosure/gnq_total_mean": float(members["gnq_total"].mean()),
        "disclosure/gnq_total_median": float(members["gnq_total"].median()),
        "disclosure/gnq_total_max": float(members["gnq_total"].max()),
        "disclosure/squared_norm_total_mean": float(members["squared_norm_total"].mean()),
        "disclosure/bits_paper_mean": float(members["bits_paper"].mean()),
        "disclosure/bits_gaussian_mean": float(members["bits_gaussian"].mean()),
        "disclosure/bits_cap": 1.0,
        "disclosure/fraction_at_cap": float(members["at_cap"].mean()),
        "disclosure/attacker_accuracy_ceiling_mean": float(members["attacker_accuracy_ceiling"].mean()),
        "disclosure/damping": 0.01,
        "disclosure/damping_relative_mean": 0.0173,
        "disclosure/effective_rank_mean": 24.6,
        "disclosure/coverage": 1.0,
        "disclosure/poisson": is_dp,
        "defense/name": defense,
        "defense/epsilon": (epsilon or 8.0) if is_dp else None,
        "defense/delta": 1e-4 if is_dp else None,
        "defense/noise_multiplier": 0.83 if is_dp else None,
        "defense/clip_norm": 1.0 if is_dp else None,
        "defense/censored_fraction": float(members["censored_at_step"].notna().mean())
        if defense.endswith("censor")
        else None,
        "cost/train_seconds": 9.4,
        "cost/cohort_seconds": 81.2,
        "cost/membership_seconds": 3.7,
        "cost/reconstruction_seconds": 61.2,
        "cost/total_seconds": 163.3,
        "cost/audit_overhead": 1.83,
        "setting/data": "digits",
        "setting/model": "small_cnn",
        "setting/batch_size": 64,
        "setting/epochs": 20,
        "setting/epsilon": epsilon if is_dp else None,
        "setting/seed": seed,
        "meta/started": "2026-05-04T10:20:30+00:00",
        "meta/hardware": "2 CPU cores",
        "meta/versions/torch": "2.14.0",
        "meta/fingerprint": f"{defense}-{epsilon}-{seed}",
    }
    for norm in ("gnq_total", "squared_norm_total"):
        rho = float(spearmanr(members[norm], members["lira_online"]).statistic)
        key = f"disclosure/spearman_{norm}_lira_online"
        results |= {key: rho, f"{key}_low": rho - 0.12, f"{key}_high": rho + 0.12}
    for attack in ("lira_online", "lira_offline", "loss_threshold"):
        results |= membership_results(examples, attack, f"attack/{attack}")
    if defense.endswith("censor"):
        for group, flags in (
            ("kept", examples["censored_at_step"].isna()),
            ("censored", ~examples["member"] | examples["censored_at_step"].notna()),
        ):
            results |= membership_results(examples[flags], "lira_online", f"attack/lira_online/{group}")
    for attack in ATTACKS:
        results[f"attack/{attack}/working"] = attack != "inverting_gradients"
        for moment in MOMENTS:
            results |= reconstruction_results(attack, moment, defense)
    return results


def membership_results(examples: pd.DataFrame, attack: str, prefix: str) -> dict[str, Value]:
    auc = float(roc_auc_score(examples["member"], examples[attack]))
    values: dict[str, Value] = {f"{prefix}/auc": auc, f"{prefix}/auc_low": auc - 0.05, f"{prefix}/auc_high": auc + 0.05}
    values[f"{prefix}/balanced_accuracy"] = 0.5 + 0.7 * (auc - 0.5)
    for rate, name in ((0.1, "10pct"), (0.01, "1pct")):
        key = f"{prefix}/tpr_at_{name}_fpr"
        values |= {key: 2 * rate, f"{key}_low": rate, f"{key}_high": 4 * rate}
    return values | {f"{prefix}/tpr_at_0.1pct_fpr": None}


def ssim_of(attack: str, moment: str) -> float:
    if attack == "inverting_gradients":
        return 0.61
    return {"control": 0.998, "init": 0.997, "early": 0.72, "end": 0.08}[moment]


def reconstruction_results(attack: str, moment: str, defense: str) -> dict[str, Value]:
    prefix = f"attack/{attack}/{moment}"
    withheld = 1 if defense.endswith("censor") and moment == "end" else 0
    ssim = ssim_of(attack, moment)
    return {
        f"{prefix}/ssim": ssim,
        f"{prefix}/mse": (1 - ssim) / 10,
        f"{prefix}/psnr": 12 + 30 * ssim,
        f"{prefix}/lpips_at_64px": None,
        f"{prefix}/label_accuracy": 1.0,
        f"{prefix}/n_scored": 4 - withheld,
        f"{prefix}/n_not_released": withheld,
    }


def fake_reconstructions(images: torch.Tensor, defense: str, seed: int) -> tuple[ReconstructionRecord, ...]:
    generator = torch.Generator().manual_seed(seed)
    records = []
    for moment in MOMENTS:
        for attack in ATTACKS:
            for position, index in enumerate((3, 11, 42, 77)):
                withheld = defense.endswith("censor") and moment == "end" and position == 3
                ssim = ssim_of(attack, moment)
                noisy = images[index] + (1 - ssim) * torch.randn(images[index].shape, generator=generator)
                metrics = {} if withheld else {"ssim": ssim - 0.01 * position, "psnr": 20.0}
                records.append(
                    ReconstructionRecord(attack, moment, index, images[index], None if withheld else noisy, metrics)
                )
    return tuple(records)

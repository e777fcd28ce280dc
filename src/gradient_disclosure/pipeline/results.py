"""The flat results of a run, and its table of examples."""

from __future__ import annotations

import math
import platform
from importlib.metadata import version

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from gradient_disclosure.attacks.membership.correlation import spearman_with_interval
from gradient_disclosure.models.predict import predict_logits
from gradient_disclosure.pipeline.membership import ATTACKS
from gradient_disclosure.pipeline.seen import seen_results, with_unseen
from gradient_disclosure.pipeline.settings import RunSettings
from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS, Value
from gradient_disclosure.training.fit import TrainedModel

PACKAGES = ("torch", "lightning", "opacus", "gradient-disclosure")


def example_table(
    settings: RunSettings, target: TrainedModel, members: Tensor, scores: dict[str, Tensor]
) -> pd.DataFrame:
    """One row an example of the pool: label, membership, ledger and attack scores; missing where it does not apply."""
    pool = settings.recipe.data.pool
    frame = pd.DataFrame({"index": range(len(pool)), "label": pool.labels.tolist(), "member": False})
    frame.loc[members.tolist(), "member"] = True
    if target.ledger is not None:
        ledger = target.ledger.to_frame()
        frame = frame.merge(ledger, on="index", how="left", validate="one_to_one")
        frame.attrs = ledger.attrs
    for name in ATTACKS:
        frame[name] = scores[name].tolist() if name in scores else math.nan
    for column in EXAMPLE_COLUMNS:
        if column not in frame.columns:
            frame[column] = math.nan
    frame["n_drawn"] = frame["n_drawn"].fillna(0).astype("int64")
    frame["at_cap"] = frame["at_cap"].astype("boolean")
    frame["censored_at_step"] = frame["censored_at_step"].astype("Int64")
    return frame


def utility_results(settings: RunSettings, target: TrainedModel, members: Tensor) -> dict[str, Value]:
    """Accuracy on the test set and on the members."""
    data = settings.recipe.data
    test = predict_logits(target.module, data.test.inputs)
    train = predict_logits(target.module, data.pool.inputs[members])
    return {
        "utility/test_accuracy": _accuracy(test, data.test.labels),
        "utility/test_loss": float(F.cross_entropy(test, data.test.labels)),
        "utility/train_accuracy": _accuracy(train, data.pool.labels[members]),
    }


def disclosure_results(settings: RunSettings, target: TrainedModel, frame: pd.DataFrame, seed: int) -> dict[str, Value]:
    """Summary of the ledger over the members, and how its ranking agrees with the attack's."""
    members = frame[frame["member"]]
    drawn = members[members["n_drawn"] > 0]
    seen = seen_results(target, members)
    every = target.audit.get("every_n_steps") or 1
    averaged = drawn if every == 1 else with_unseen(members)
    results: dict[str, Value] = {
        "disclosure/gnq_total_mean": _mean(averaged["gnq_total"]),
        "disclosure/gnq_total_median": _finite(averaged["gnq_total"].median()),
        "disclosure/gnq_total_max": _finite(drawn["gnq_total"].max()),
        "disclosure/squared_norm_total_mean": _mean(averaged["squared_norm_total"]),
        "disclosure/bits_paper_mean": _mean(averaged["bits_paper"]),
        "disclosure/bits_gaussian_mean": _mean(averaged["bits_gaussian"]),
        "disclosure/bits_cap": _mean(drawn["bits_cap"]),
        "disclosure/fraction_at_cap": _mean(averaged["at_cap"].astype("Float64")),
        "disclosure/attacker_accuracy_ceiling_mean": _mean(drawn["attacker_accuracy_ceiling"]),
        **seen,
        "disclosure/damping": target.audit.get("damping"),
        "disclosure/damping_relative_mean": target.audit.get("relative_damping"),
        "disclosure/effective_rank_mean": target.audit.get("effective_rank"),
        "disclosure/inside_span_mean": target.audit.get("inside_span"),
        "disclosure/scope": None if target.ledger is None else target.ledger.scope,
        "disclosure/inverse": None if target.ledger is None else target.ledger.inverse,
        "disclosure/poisson": None
        if target.ledger is None or target.ledger.exposure is None
        else target.ledger.exposure.poisson,
    }
    for column in ("gnq_total", "squared_norm_total"):
        pairs = drawn[[column, "lira_online"]].dropna()
        rho, low, high = _spearman(pairs[column], pairs["lira_online"], seed)
        key = f"disclosure/spearman_{column}_lira_online"
        results |= {key: rho, f"{key}_low": low, f"{key}_high": high}
    return results


def _spearman(x: pd.Series, y: pd.Series, seed: int) -> tuple[float | None, float | None, float | None]:
    """Missing without LiRA, or with too few members to speak of a correlation."""
    return spearman_with_interval(x.to_numpy(), y.to_numpy(), seed=seed) if len(x) > 2 else (None, None, None)


def defense_results(settings: RunSettings, target: TrainedModel) -> dict[str, Value]:
    """What the defense reports of itself."""
    return {"defense/name": settings.recipe.defense.name, **{f"defense/{k}": v for k, v in target.defense.items()}}


def known_others_results(target: TrainedModel, frame: pd.DataFrame) -> dict[str, Value]:
    """Under DP-SGD, mean over the draws of (‖g̃‖/σC)²: what an attacker faces who knows every other member.

    Only this figure is comparable with ε; GNQ takes the other members as unknown.
    """
    noise, clip = target.defense.get("noise_multiplier"), target.defense.get("clip_norm")
    if not isinstance(noise, float) or not isinstance(clip, (int, float)) or noise * clip == 0:
        return {}
    drawn = frame[frame["n_drawn"] > 0]
    every = target.audit.get("every_n_steps") or 1  # each audited step stands for so many in the totals
    per_draw = drawn["squared_norm_total"] / drawn["n_drawn"] / every / (noise * clip) ** 2
    return {"disclosure/known_others_mu_squared_mean": _mean(per_draw)}


def meta_results() -> dict[str, Value]:
    """What the run was made with."""
    return {
        "meta/hardware": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "meta/python": platform.python_version(),
        **{f"meta/version_{name.replace('-', '_')}": version(name) for name in PACKAGES},
    }


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(dim=1) == labels).float().mean())


def _mean(values: pd.Series) -> float | None:
    return _finite(values.mean())


def _finite(value: object) -> float | None:
    number = float(value) if isinstance(value, (int, float)) or hasattr(value, "__float__") else math.nan
    return number if math.isfinite(number) else None

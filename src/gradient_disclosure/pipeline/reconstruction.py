"""Gradient reconstruction of a few members, from exactly what the defense releases, at three moments of training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradient_disclosure.attacks.reconstruction.attack import ReconstructionAttack
from gradient_disclosure.attacks.reconstruction.metrics import reconstruction_metrics
from gradient_disclosure.attacks.reconstruction.perceptual import PerceptualDistance
from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
from gradient_disclosure.attacks.reconstruction.victim import gradient_of_batch
from gradient_disclosure.pipeline.settings import RunSettings
from gradient_disclosure.reporting.record import ReconstructionRecord, Value
from gradient_disclosure.training.batches import derived_seed
from gradient_disclosure.training.defense import mean_gradient
from gradient_disclosure.training.fit import TrainedModel

MOMENTS = ("init", "early", "end")


@dataclass(frozen=True)
class Observation:
    """One gradient an attacker may see.

    Attributes:
        moment: "control" (undefended, at initialization), "init", "early" or "end".
        index: pool index of the example.
        model: the model as it was then.
        released: what is released; None if nothing is: the example had been censored by then, or its gradient is zero.
    """

    moment: str
    index: int
    model: nn.Module
    released: ReleasedGradient | None


def attacked_members(members: Tensor, count: int, seed: int) -> list[int]:
    """Pool indices of the members under attack: random, so that neither defense nor score chooses them."""
    generator = torch.Generator().manual_seed(derived_seed("attacked members", seed))
    chosen = members[torch.randperm(members.numel(), generator=generator)[:count]]
    return [int(index) for index in chosen.sort().values]


def observations(settings: RunSettings, target: TrainedModel, examples: Sequence[int]) -> list[Observation]:
    """What is released of each example at each moment, one example a batch, and the undefended control."""
    recipe, generator = settings.recipe, torch.Generator().manual_seed(derived_seed("release noise", settings.seed))
    pool, steps_then = recipe.data.pool, _steps_at(settings, target)
    seen: list[Observation] = []
    for moment in MOMENTS:
        if moment not in steps_then:
            continue
        model = _model_at(target, moment)
        for index in examples:
            per_example = [g[None] for g in gradient_of_batch(model, pool.inputs[[index]], pool.labels[[index]])]
            if moment == "init":
                seen.append(Observation("control", index, model, mean_gradient(per_example)))
            released = recipe.defense.release(per_example, target.defense, generator)
            hidden = _censored_by(target, index, steps_then[moment]) or _is_zero(released)
            seen.append(Observation(moment, index, model, None if hidden else released))
    return seen


def reconstruct(
    settings: RunSettings, seen: Sequence[Observation], on_attack: Callable[[], None]
) -> list[ReconstructionRecord]:
    """Run every attack on every observation; a gradient equal to the control's is attacked once."""
    lpips = PerceptualDistance.load(settings.reconstruction.lpips_weights)
    controls = {o.index: o for o in seen if o.moment == "control"}
    records: list[ReconstructionRecord] = []
    for attack in settings.reconstruction.attacks:
        done: dict[int, ReconstructionRecord] = {}
        for number, observation in enumerate(seen):
            control = controls[observation.index]
            if observation.moment == "init" and _same(control.released, observation.released):
                record = _renamed(done[observation.index], "init")
            else:
                seed = derived_seed(attack.name, settings.seed, number)
                record = _attacked(settings, attack, observation, lpips, torch.Generator().manual_seed(seed))
            if observation.moment == "control":
                done[observation.index] = record
            records.append(record)
            on_attack()
    return records


def reconstruction_results(settings: RunSettings, records: Sequence[ReconstructionRecord]) -> dict[str, Value]:
    """Flat results ``attack/<name>/<moment>/...``: means over what was released, and whether the attack works."""
    results: dict[str, Value] = {}
    for attack in settings.reconstruction.attacks:
        for moment in ("control", *MOMENTS):
            chosen = [r for r in records if r.attack == attack.name and r.moment == moment]
            if not chosen:
                continue
            scored = [r.metrics for r in chosen if r.reconstructed is not None]
            prefix = f"attack/{attack.name}/{moment}"
            results[f"{prefix}/n_scored"] = len(scored)
            results[f"{prefix}/n_not_released"] = len(chosen) - len(scored)
            results |= {f"{prefix}/{key}": value for key, value in _means(scored).items()}
        control = results.get(f"attack/{attack.name}/control/ssim")
        working = isinstance(control, float) and control > settings.reconstruction.working_ssim
        results[f"attack/{attack.name}/working"] = working
    return results


def _steps_at(settings: RunSettings, target: TrainedModel) -> dict[str, int]:
    """Optimizer steps done at each moment that the training reached."""
    known = {"init": 0, "end": target.steps, **early_moment(settings)}
    return {name: step for name, step in known.items() if name == "end" or name in target.snapshots}


def early_moment(settings: RunSettings) -> dict[str, int]:
    """The moment "early" in steps."""
    per_epoch = -(
        -round(settings.recipe.audit.membership_prior * len(settings.recipe.data.pool)) // settings.recipe.batch_size
    )
    return {"early": settings.reconstruction.early_epochs * per_epoch}


def _model_at(target: TrainedModel, moment: str) -> nn.Module:
    model = copy.deepcopy(target.module.network)
    if moment != "end":
        prefix = "network."
        weights = target.snapshots[moment]
        model.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
    return model.eval()


def _censored_by(target: TrainedModel, index: int, step: int) -> bool:
    """Whether the example contributed nothing any more at a step."""
    if target.ledger is None:
        return False
    frame = target.ledger.to_frame()
    return bool(((frame["index"] == index) & (frame["censored_at_step"] <= step).fillna(False)).any())


def _is_zero(released: ReleasedGradient) -> bool:
    return not any(bool(gradient.any()) for gradient in released.gradients)


def _same(a: ReleasedGradient | None, b: ReleasedGradient | None) -> bool:
    return (
        a is not None
        and b is not None
        and (a.clip_norm, a.noise_std) == (b.clip_norm, b.noise_std)
        and all(torch.equal(x, y) for x, y in zip(a.gradients, b.gradients, strict=True))
    )


def _renamed(record: ReconstructionRecord, moment: str) -> ReconstructionRecord:
    return ReconstructionRecord(
        record.attack, moment, record.index, record.original, record.reconstructed, record.metrics
    )


def _attacked(
    settings: RunSettings,
    attack: ReconstructionAttack,
    observation: Observation,
    lpips: PerceptualDistance | None,
    generator: torch.Generator,
) -> ReconstructionRecord:
    data = settings.recipe.data
    original = data.pool.inputs[observation.index]
    if observation.released is None or data.value_range is None:
        return ReconstructionRecord(attack.name, observation.moment, observation.index, original, None, {})
    guess = attack.reconstruct(
        observation.model,
        observation.released,
        shape=data.spec.shape,
        num_classes=data.spec.num_classes,
        value_range=data.value_range,
        generator=generator,
    )
    metrics: Mapping[str, float] = reconstruction_metrics(
        guess.inputs, original[None], value_range=data.value_range, lpips=lpips
    )[0]
    label_right = float(int(guess.labels[0]) == int(data.pool.labels[observation.index]))
    return ReconstructionRecord(
        attack.name,
        observation.moment,
        observation.index,
        original,
        guess.inputs[0],
        {**metrics, "label_accuracy": label_right},
    )


def _means(scored: Sequence[Mapping[str, float]]) -> dict[str, Value]:
    """Mean of each metric; an infinite PSNR (an exact match) makes the mean missing, not infinite."""
    means: dict[str, Value] = {}
    for key in sorted({key for metrics in scored for key in metrics}):
        values = torch.tensor([metrics[key] for metrics in scored if key in metrics], dtype=torch.float64)
        mean = float(values.mean())
        means[key] = mean if torch.isfinite(values).all() else None
    return means

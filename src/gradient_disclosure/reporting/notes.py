"""Sentences under a table: what its numbers do not say, as far as it concerns this run."""

from __future__ import annotations

from gradient_disclosure.reporting.audit_seen import partial_notes
from gradient_disclosure.reporting.record import Results, Value
from gradient_disclosure.reporting.values import number, text
from gradient_disclosure.reporting.vocabulary import CENSORS, RECONSTRUCTION_ATTACKS

_DRAWS: dict[Value, str] = {
    True: "Bits assume independent (Poisson) draws, as this run makes them.",
    False: "Bits assume independent (Poisson) draws; this run shuffles, so they are a Poisson approximation.",
    None: "Bits assume independent (Poisson) draws; under shuffled epochs they are a Poisson approximation.",
}


def notes(results: Results) -> tuple[str, ...]:
    """Collect the warnings that apply to a run.

    Args:
        results: flat results.

    Returns:
        Full sentences, the most important first.

    Example:
        >>> for note in notes({"defense/name": "gnq_censor"}):
        ...     print(note)
        A censor depends on the data and gives no formal guarantee: ε does not exist for this run.
        – : not applicable, not reportable or missing; it never stands for 0.
    """
    sentences = [
        *_not_working(results),
        *_guarantee(results),
        *partial_notes(results),
        *_scoring(results),
        *_bits(results),
    ]
    if any(key.startswith(("attack/lira", "attack/loss")) for key in results):
        sentences.append("An attack that does not beat guessing is not proof of privacy: a stronger one may.")
    sentences.append("– : not applicable, not reportable or missing; it never stands for 0.")
    return tuple(sentences)


def _not_working(results: Results) -> list[str]:
    names = [words for name, words in RECONSTRUCTION_ATTACKS.items() if results.get(f"attack/{name}/working") is False]
    if not names:
        return []
    return [
        f"Attack not working: {', '.join(names)} did not reconstruct even the undefended gradient at initialization "
        "(SSIM 0.9 or below). What it scores elsewhere says nothing about the defense."
    ]


def _guarantee(results: Results) -> list[str]:
    defense = text(results, "defense/name")
    if defense in CENSORS:
        sentences = ["A censor depends on the data and gives no formal guarantee: ε does not exist for this run."]
        if any("/censored/" in key for key in results):
            sentences.append(
                "Censored members may be told from others in either direction: an AUC far below 0.5 discloses them "
                "too, and one near 0.5 can hide a high TPR at low FPR."
            )
        return sentences
    if defense == "dp_sgd":
        return ["ε covers the released model; it does not cover the ledger, the logs, this report or the tuning."]
    return []


def _scoring(results: Results) -> list[str]:
    sentences = []
    if text(results, "disclosure/scope") == "universe_proxy":
        sentences.append(
            "GNQ is an estimate of the value among all examples of the pool, from each batch: it ranks well and "
            "overestimates on average, the more the smaller the batches."
        )
    if text(results, "disclosure/inverse") == "pinv":
        inside = number(results, "disclosure/inside_span_mean")
        share = "" if inside is None else f" (of a squared gradient norm, {inside:.0%} lay inside on average)"
        sentences.append(
            "GNQ by pseudo-inverse does not see the part of a gradient outside the span of the others in its batch"
            f"{share}: an example that shares nothing with them scores 0. It has no bits."
        )
    return sentences


def _bits(results: Results) -> list[str]:
    if (
        number(results, "disclosure/bits_paper_mean") is None
        and number(results, "disclosure/bits_gaussian_mean") is None
    ):
        return []
    sentences = [_DRAWS.get(results.get("disclosure/poisson"), _DRAWS[None])]
    if number(results, "disclosure/fraction_at_cap"):
        sentences.append("At the cap the bound in bits is vacuous: for those members only the ranking by GNQ speaks.")
    if text(results, "defense/name") == "dp_sgd":
        sentences.append(
            "Under DP-SGD, GNQ, bits and norms are those of the clipped gradients, with the real noise as damping: "
            "not to be compared with the GNQ of undefended runs. This scale is the project's own extension, not the "
            "paper's."
        )
    return sentences

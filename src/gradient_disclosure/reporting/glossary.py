"""What each number means, and what it does not mean; every table links here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """One entry of the glossary.

    Attributes:
        anchor: name to link to.
        name: the term in words.
        means: what the number says.
        does_not_mean: the wrong reading to warn of.
    """

    anchor: str
    name: str
    means: str
    does_not_mean: str


GLOSSARY = (
    Term(
        "accuracy",
        "Test accuracy, test loss, train accuracy",
        "Fraction of right predictions, and mean loss, on a test set that is used for nothing else; and on the "
        "members.",
        "The accuracy of an average says nothing about small groups: a defense can cost rare kinds of examples far "
        "more.",
    ),
    Term(
        "member",
        "Member",
        "An example of the set GIVEN to the training procedure, whether a censor dropped it later or not.",
        "A member that was never drawn into a batch has GNQ 0 because nothing was released about it, not because it "
        "is common. If not every step was audited, one without a score may have been drawn all the same.",
    ),
    Term(
        "gnq",
        "Gradient uniqueness (GNQ)",
        "g_jᵀ (Σ_{k≠j} g_k g_kᵀ + λI)⁻¹ g_j: how far an example's gradient stands out from those of the others, per "
        "step; "
        "the total adds up the steps at which the example was drawn. No unit. The sum runs over the batch; by scope "
        "'universe_proxy' an estimate of the sum over all N examples takes its place, by inverse 'pinv' a "
        "pseudo-inverse that of λ.",
        "Not a probability and not comparable between runs with another batch size, damping λ or scope. "
        "It ranks examples; what the ranking predicts must be shown by an attack.",
    ),
    Term(
        "squared-norm",
        "Squared gradient norm",
        "The plain size of an example's gradient, added up in the same way: the baseline that GNQ must beat.",
        "Large is not unique: a large gradient that many examples share discloses little about any one of them.",
    ),
    Term(
        "bits-paper",
        "Bits, paper's formula",
        "The seed paper's approximation of what the releases say about membership, capped at the run's cap.",
        "Not a proven bound: it takes conditional entropies as Gaussian, which bounds them from the wrong side.",
    ),
    Term(
        "bits-gaussian",
        "Bits, Gaussian estimate",
        "Mutual information between membership and the released gradients if the rest plus noise is Gaussian with the "
        "damping as noise, capped at the run's cap. Assumes independent (Poisson) draws.",
        "Exact for real Gaussian noise (DP-SGD) and one step only; otherwise an estimate and not an upper bound. Under "
        "shuffled epochs it is a Poisson approximation. For DP-SGD it is this project's own extension.",
    ),
    Term(
        "bits-cap",
        "Cap in bits",
        "The most that any run with this sampling can disclose about one membership, whatever the model and the data.",
        "An example at the cap has not been shown to be exposed: there the bound is vacuous, and only the ranking "
        "speaks.",
    ),
    Term(
        "ceiling",
        "Attacker's accuracy ceiling",
        "From the bits by Fano's inequality: if they were exact, nobody who sees the releases could guess "
        "membership right more often, or find more members at that false positive rate.",
        "Only as good as the bits behind it. A real attack may stay far below it, and 100 % says nothing at all.",
    ),
    Term(
        "coverage",
        "Coverage, steps audited",
        "Fraction of the trainable parameters whose gradients are in the GNQ; fraction of the training steps that were "
        "audited. Each audited step stands for n if one of every n, drawn at random, is audited.",
        "Below 100 %, the parameters left out may disclose what GNQ does not show, and totals over all steps are "
        "estimates: the fewer the steps, the less sure a single member's value and rank.",
    ),
    Term(
        "damping",
        "Damping λ, relative damping, effective rank",
        "λ stands for noise in the released gradient; relative to the mean squared gradient norm it is free of "
        "scale. The effective rank Σ_j h_j counts how many directions of a batch stand out of it.",
        "Unless the defense adds noise, λ is an assumption. At a large λ, GNQ is only the squared norm divided by λ.",
    ),
    Term(
        "spearman",
        "Spearman correlation with the attack",
        "Over the members: does a higher GNQ go with a more confident membership attack? 1 is the same order, 0 none.",
        "A correlation is not a cause, and a noisy attack (few shadow models) keeps it below what is true.",
    ),
    Term(
        "epsilon",
        "Accountant's ε at δ",
        "DP-SGD's formal guarantee for the RELEASED MODEL, from the accountant and the real number of steps.",
        "It does not cover the ledger, the logs, this report or the tuning of settings. A dash means no guarantee.",
    ),
    Term(
        "censored",
        "Members censored",
        "Share of the members that a censor stopped from contributing to training.",
        "Censoring is data-dependent and gives no formal guarantee. What an example disclosed before stays disclosed.",
    ),
    Term(
        "membership",
        "Membership inference: LiRA online, LiRA offline, loss threshold",
        "The attacker has the trained model's outputs and shadow models trained by the same procedure with the same "
        "defense (the loss threshold needs none), and guesses who was a member.",
        "An attack that fails is not proof of privacy: a stronger one, with more shadow models or queries, may "
        "succeed.",
    ),
    Term(
        "auc",
        "AUC, balanced accuracy",
        "Chance that a member gets a higher score than a non-member; best mean of the two rates of right guesses. "
        "0.5 is guessing. Brackets hold bootstrap intervals.",
        "An average over everyone: an AUC near 0.5 can hide a few members who are identified with certainty.",
    ),
    Term(
        "tpr",
        "TPR at a low FPR",
        "Fraction of members found while at most 10, 1 or 0.1 % of the non-members are accused. Guessing finds as "
        "many.",
        "A dash means there are too few non-members to measure it: it is not 0.",
    ),
    Term(
        "reconstruction",
        "Gradient reconstruction: DLG, iDLG, Inverting Gradients",
        "The attacker has the gradient of a batch exactly as the defense releases it, and searches for the input.",
        "A failed attack on a trained network says little about a defense: DLG often fails on undefended ones. Means "
        "over few examples hide that some are copied perfectly and others not at all: look at the pictures.",
    ),
    Term(
        "control",
        "Control and 'attack not working'",
        "Each attack must first reconstruct from the undefended gradient at initialization (SSIM above 0.9).",
        "An attack that fails this test is not working here; its low scores never mean 'private'.",
    ),
    Term(
        "similarity",
        "SSIM, PSNR, MSE, LPIPS at 64 pixels, label accuracy",
        "Likeness of reconstruction and original: SSIM 1 is identical, a higher PSNR and a lower MSE or LPIPS are "
        "closer. Label accuracy is how often the label was recovered.",
        "A gradient that was not released is counted apart and never scored. Small images are enlarged for LPIPS "
        "alone.",
    ),
    Term(
        "cost",
        "Cost",
        "Wall-clock times of this run's parts; the overhead is an audited training step divided by a plain one.",
        "Times depend on the machine and on what else ran on it.",
    ),
)

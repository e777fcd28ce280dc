"""Errors that are meant for the person who reads them: what was wrong, where, what to do."""

from __future__ import annotations


class DisclosureError(Exception):
    """Base of every error this package raises on purpose."""


class UnsupportedLayerError(DisclosureError):
    """A trainable parameter belongs to a module whose per-example gradients are not known."""


class BatchCouplingError(DisclosureError):
    """A layer mixes the examples of a batch, so that 'the gradient of one example' has no meaning."""


class IncompleteGramError(DisclosureError):
    """A parameter received a gradient of which not every part reached the Gram matrix."""


class NonFiniteGradientError(DisclosureError):
    """NaN or infinity in a loss, a gradient or a Gram matrix."""


class IllConditionedGramError(DisclosureError, ValueError):
    """K + λI is not positive definite in float64: the damping is too small for this Gram matrix."""


class ExampleIdError(DisclosureError):
    """Example ids are missing, repeated in one batch, unknown or of the wrong kind."""


class IncompatibleModelError(DisclosureError):
    """A model cannot be trained on this kind of data."""


class MissingDataError(DisclosureError):
    """A data file is not where it was looked for."""


class InvalidBatchError(DisclosureError):
    """A batch does not have the form (inputs, labels, index)."""


class UnsupportedTrainingError(DisclosureError):
    """The training set-up would make a defence or an audit wrong; the message says what to change."""


class CensorLimitError(DisclosureError):
    """A censor was about to drop more members than it is allowed to."""


class RunFolderError(DisclosureError):
    """A run's folder cannot be used: not writable, or it holds another run."""

"""The named errors and warnings of the library. Each message says what was expected, what came
(:func:`shown`), and what to do.
"""

import reprlib
from typing import Any

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def shown(value: Any) -> str:
    """A value in an error: on one line, and short."""
    try:
        return " ".join(_short.repr(value).split())
    except (
        ValueError,
        RecursionError,
    ):  # a number of thousands of digits, a list that holds itself deeply
        return f"{type(value).__name__} of a length that cannot be shown"


class GaussMarkError(ValueError):
    """Anything this library refuses to do; catch it to catch them all."""


class UnknownWeightError(GaussMarkError):
    """The named weight is not in the model, or is not the matrix of a linear layer."""


class InvalidWatermarkError(GaussMarkError):
    """A watermark's σ or rank is outside its range."""


class InvalidModelError(GaussMarkError):
    """A model that cannot be loaded, or whose weights are not finite."""


class PerturbedModelError(GaussMarkError):
    """A watermarked model where the base model is needed (scoring, or watermarking twice)."""


class KeyFileError(GaussMarkError):
    """A key file that is truncated, edited or not a key file."""


class KeyMismatchError(GaussMarkError):
    """A key that was made for another weight, sigma, rank or base model, or something that is no
    key.
    """


class CodebookError(GaussMarkError):
    """A codebook, or a user of one, that does not exist."""


class StateError(GaussMarkError):
    """The state of a stream of texts that is damaged, of another version, open to others, or of
    another weight, model or set of keys.
    """


class InvalidTextError(GaussMarkError):
    """Token ids that cannot be scored: none at all, outside the vocabulary, or longer than the
    context.
    """


class DegenerateScoreError(GaussMarkError):
    """A zero or non-finite gradient, for which ψ does not exist."""


class CorpusError(GaussMarkError):
    """Text that was asked for and cannot be had."""


class ParameterError(GaussMarkError):
    """A notebook parameter that is unknown, of the wrong type, or out of range."""


class RecordError(GaussMarkError):
    """A run's record that cannot be written, or that is damaged."""


class ClusterError(GaussMarkError):
    """A Dask cluster that cannot be reached, or that cannot run what is asked of it."""


class HarnessError(GaussMarkError):
    """A task of lm-evaluation-harness that does not exist, cannot be had, or does not fit the
    model.
    """


class JudgeError(GaussMarkError):
    """A judge that is not set up, or that answered nothing usable."""


class CorruptionError(GaussMarkError):
    """A change to a text that cannot be made, or that would leave nothing of it."""


class BoundError(GaussMarkError):
    """Parameters outside the range for which a bound is proved."""


class StatisticsError(GaussMarkError):
    """Numbers that no estimate can be made of: none at all, NaN, of other shapes than each other,
    or outside their range.
    """


class GaussMarkWarning(UserWarning):
    """Something that was done, but perhaps not as it was meant; catch it to catch them all."""


class KeyFileWarning(GaussMarkWarning):
    """A half-written key file, with its secret, that a killed process left."""


class BaseModelWarning(GaussMarkWarning):
    """A model that has the key's marked matrix, and other weights elsewhere than the model that the
    key was made with.
    """


class RoundingWarning(GaussMarkWarning):
    """A watermark of which rounding to the weights' dtype swallowed a part."""

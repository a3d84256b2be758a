"""The question that a command asks of each text: which keys, which model, which level."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench.cli import answers

if TYPE_CHECKING:  # these imports take seconds
    from gaussmark_lib.gradients import Weigh
    from gaussmark_lib.keys import Key
    from gaussmark_lib.models import LM
    from gaussmark_lib.weights import Watermark


@dataclass(frozen=True)
class Question:
    """The keys of one watermark, the base model, the level, and the share of replaced tokens that
    the test is tuned for.
    """

    keys: "Sequence[Key]"
    watermark: "Watermark"
    lm: "LM"
    level: float
    edited: float
    token_weights: "Weigh"  # that suit this share

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in watermarked texts; for several weights, the first
        one's, because their gradients are in units of the first σ.
        """
        sigma = self.keys[0].binding.sigma_carried or self.watermark.sigma
        return sigma[0] if isinstance(sigma, tuple) else sigma

    @cached_property
    def identity(self) -> list[Any]:
        """What distinguishes this question from others, as JSON without secrets."""
        from gaussmark_lib.engine import checkpoints

        fingerprints = [key.fingerprint for key in self.keys]
        return [checkpoints.digest(self.lm.model), fingerprints, self.level, self.edited]


def ask(
    key_files: Sequence[Path], model: str, *, level: float = 0.05, edited: float | None = None
) -> Question:
    """Read the keys and load the model. The default of ``edited`` is the share in the keys.

    Raises:
        GaussMarkError: before the model is loaded, if a key has no weight, or the keys have
            different shares.
    """
    answers.loading(model)
    from gaussmark_lib import models
    from gaussmark_lib.beyond import channel
    from gaussmark_lib.keys import Key

    keys = [Key.load(file) for file in key_files]
    watermarks = [key.watermark for key in keys]  # refuses a key without a weight
    shares = {key.binding.edited for key in keys} if edited is None else {edited}
    if len(shares) > 1:
        raise GaussMarkError(
            f"--key: expected keys for the same share of replaced tokens, got {sorted(shares)}; use"
            " --edited SHARE"
        )
    [share_of_keys] = shares
    share = channel.share(share_of_keys, "--edited")
    lm = models.load(model)
    weigh = channel.weights(lm.model, share)
    return Question(keys, watermarks[0], lm, level, share, weigh)

"""A step of a run: so many texts that are treated in one way, and what all kinds of steps have in
common.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from gaussmark_lib.plan.shapes import BYTES, Shape, Weight

FLOAT = 4  # bytes of a number in a gradient or a noise, whatever the model's dtype
DRAWN = 4  # one that is drawn and not yet put in its place


@dataclass(frozen=True)
class Setting:
    """The model of a run, its watermarked weight, the dtypes of its weights and of scoring, and how
    it samples.
    """

    shape: Shape
    weight: Weight
    held: str = "float32"
    scoring: str = "float32"
    top_p: float = 1.0
    apart: bool = False  # the device has a memory of its own, not the machine's


@dataclass(frozen=True)
class Bytes:
    """What lives at a step's peak beside the model's own weights. ``copies`` are further copies of
    these, wider or noisy ones.
    """

    copies: float = 0
    cache: float = 0
    activations: float = 0
    logits: float = 0
    gradients: float = 0
    noises: float = 0

    def parts(self) -> dict[str, float]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def total(self) -> float:
        return sum(self.parts().values())


@dataclass(frozen=True)
class Step:
    """So many texts of one length, treated in one way.

    Args:
        batch: texts at a time. weights: those that it is about; the run's own by default.
        keys: noises that live at a time. drawn: noises that are drawn in all.
        held: further float32 tensors of the weight's size that live at a time; at_home: those of
            them on the machine, also beside a GPU.
        by: parameter → how many noises and tensors one more of it adds. batch_by: the parameter
            that is the batch.
        copies: further models that live at a time.
    """

    what: str
    texts: int
    prompt: int
    tokens: int
    batch: int = 8
    weights: tuple[Weight, ...] = ()
    keys: int = 0
    drawn: int = 0
    held: int = 0
    at_home: int = 0
    by: Mapping[str, float] = field(default_factory=dict)
    batch_by: str = "batch_size"
    copies: int = 0

    @property
    def rows(self) -> int:
        return max(1, min(self.batch, self.texts))

    @property
    def length(self) -> int:
        return self.prompt + self.tokens

    @property
    def n_tokens(self) -> int:
        """Tokens that pass the model."""
        return self.texts * self.length

    @property
    def calls(self) -> int:
        """Calls of the model."""
        return -(-self.texts // self.rows)

    def of(self, setting: Setting) -> tuple[Weight, ...]:
        return self.weights or (setting.weight,)

    def size(self, setting: Setting) -> int:
        """Numbers of one noise."""
        return self.of(setting)[0].matrix.size

    def noises(self, setting: Setting) -> float:
        """Bytes of the noises that live at a time, with one more that is drawn."""
        return self.size(setting) * (FLOAT * self.keys + DRAWN * bool(self.drawn))

    def flops(self, setting: Setting) -> float:
        """Floating-point operations on the device."""
        return 0.0

    def bytes(self, setting: Setting) -> Bytes:
        """In the largest phase, beside the model's weights."""
        return max(self.phases(setting), key=lambda phase: phase.total)

    def phases(self, setting: Setting) -> list[Bytes]:
        return [
            Bytes(
                noises=self.noises(setting),
                gradients=self.kept(setting),
                copies=self.copied(setting),
            )
        ]

    def kept(self, setting: Setting) -> float:
        """Bytes of what is held on the device."""
        return FLOAT * self.size(setting) * (self.held - self.at_home * setting.apart)

    def copied(self, setting: Setting) -> float:
        return self.copies * setting.shape.parameters * BYTES[setting.held]

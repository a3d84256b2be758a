"""What a piece of work costs on a model: floating-point operations, and bytes at its peak.

    forward pass of a token   2·(matrices that it passes) + 4·(width of the queries)·(positions) a block, and 2·H·V where something is predicted
    backward pass             2·(matrices after the watermarked one), 2.5 times the attention of the blocks above, 2·H·V a prediction
    G of a text               2·d_out·d_in a token;   ψ of a text and key: 2·d_out·d_in

Only activations have a gradient, no weight, so going backward costs what going forward does. Attention is counted for all pairs of positions, as
kernels with a mask compute it. Memory is that of this library's code: each line names tensors that live at the same time. tests/oracle/plan holds
both against measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from gaussmark_lib.plan.shapes import BYTES, Shape, Weight

PICK, PICK_TOP_P = 28, 52  # bytes a row and word of the vocabulary while a token is drawn, in float64: the distribution and what it is made from
FLOAT = 4  # bytes of a number in a gradient or a noise, whatever the model's dtype
DRAWN = 12  # and while it is drawn, in float64
UNITS = 32  # texts whose unit gradients score.score holds together, at most


@dataclass(frozen=True)
class Setting:
    """The model of a run, its watermarked weight, the dtypes of its weights and of scoring, and how it samples."""

    shape: Shape
    weight: Weight
    held: str = "float32"
    scoring: str = "float32"
    top_p: float = 1.0
    apart: bool = False  # the device has a memory of its own, not the machine's


@dataclass(frozen=True)
class Bytes:
    """What lives at a step's peak beside the model's own weights. ``copies`` are further copies of these, wider or noisy ones."""

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
        held: further float32 tensors of the weight's size that live at a time; at_home: those of them on the machine, also beside a GPU.
        by: parameter → how many noises and tensors one more of it adds. batch_by: the parameter that is the batch.
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
        drawn = DRAWN if self.drawn or self.keys else 0
        return self.size(setting) * (drawn + FLOAT * self.keys)

    def flops(self, setting: Setting) -> float:
        """Floating-point operations on the device."""
        return 0.0

    def bytes(self, setting: Setting) -> Bytes:
        """At the peak, beside the model's weights."""
        return Bytes(noises=self.noises(setting), gradients=self.kept(setting), copies=self.copied(setting))

    def kept(self, setting: Setting) -> float:
        """Bytes of what is held on the device."""
        return FLOAT * self.size(setting) * (self.held - self.at_home * setting.apart)

    def copied(self, setting: Setting) -> float:
        return self.copies * setting.shape.parameters * BYTES[setting.held]


def forward(shape: Shape, tokens: float, pairs: float, predicted: float) -> float:
    """Operations of a forward pass of so many tokens with so many pairs of positions, of which so many predict a token."""
    return 2 * shape.layers * (shape.block_size * tokens + 2 * shape.q_width * pairs) + 2 * shape.head_size * predicted


def at_once(shape: Shape, width: int) -> float:
    """Bytes a position of what a block computes at once: the MLP's inner layers, or queries, keys and values; and the residual stream."""
    return width * (max(3 * shape.intermediate, 2 * shape.q_width + 2 * shape.kv_width) + 3 * shape.hidden)


@dataclass(frozen=True)
class Write(Step):
    """Texts sampled with a cache. With ``keys``, ``generate_many`` adds their noises to the layer's output; else a noise is put into the weight."""

    batch: int = 64

    @property
    def calls(self) -> int:
        return super().calls * self.tokens

    def flops(self, setting: Setting) -> float:
        pairs, tokens = self.prompt**2 + sum(range(self.prompt + 1, self.length)), self.texts * (self.length - 1)
        added = 2 * self.size(setting) * tokens if self.keys else 0
        return forward(setting.shape, tokens, self.texts * pairs, self.texts * self.tokens) + added

    def bytes(self, setting: Setting) -> Bytes:
        shape, width, size = setting.shape, BYTES[setting.held], self.size(setting)
        cache = 2 * self.rows * self.length * shape.layers * shape.kv_width * width
        logits = self.rows * shape.vocabulary * (width + (PICK if setting.top_p == 1 else PICK_TOP_P))
        put = 3 * FLOAT + width if self.drawn else 0  # θ is kept, and θ + ξ and what was added to θ are compared in float32
        noises = size * ((DRAWN if self.drawn else 0) + put + width * self.keys)
        return Bytes(self.copied(setting), cache, self.rows * self.prompt * at_once(shape, width), logits, self.kept(setting), noises)


@dataclass(frozen=True)
class Read(Step):
    """Texts whose probabilities are read off ``times`` forward passes. ``whole``: two models' log-probabilities of all positions are compared."""

    times: int = 1
    whole: bool = False

    @property
    def n_tokens(self) -> int:
        return self.times * super().n_tokens

    @property
    def calls(self) -> int:
        return self.times * super().calls

    def _predicted(self) -> int:
        return self.length if self.whole else self.tokens + 1

    def flops(self, setting: Setting) -> float:
        return self.times * self.texts * forward(setting.shape, self.length, self.length**2, self._predicted())

    def bytes(self, setting: Setting) -> Bytes:
        shape, width, size = setting.shape, BYTES[setting.held], self.size(setting)
        several = 4 * FLOAT * self.rows * self.length if self.whole else 2 * FLOAT * self.tokens  # log-probabilities; else a text's at a time
        logits = shape.vocabulary * (self.rows * self._predicted() * width + several)
        noises = size * (DRAWN + 3 * FLOAT + width) if self.drawn else 0
        return Bytes(self.copied(setting), 0, self.rows * self.length * at_once(shape, width), logits, self.kept(setting), noises)


@dataclass(frozen=True)
class Score(Step):
    """Texts whose gradients for ``weights`` are formed, in ``parts`` backward passes (one a length), and tested under ``keys`` noises."""

    parts: int = 1
    again: int = 1  # the whole so often

    @property
    def n_tokens(self) -> int:
        return self.again * super().n_tokens

    @property
    def calls(self) -> int:
        return self.again * super().calls * (1 + self.parts)

    def lowest(self, setting: Setting) -> Weight:
        """The weight that the backward pass goes down to."""
        return min(self.of(setting), key=lambda one: (one.block, one.matrix.stage))

    def flops(self, setting: Setting) -> float:
        shape, lowest, length = setting.shape, self.lowest(setting), self.length
        matrices, blocks = shape.after(lowest)
        head = shape.head_size * (self.tokens + 1) if lowest.block < shape.layers else 0
        back = 2 * (matrices * length + head) + 10 * shape.q_width * blocks * length**2
        formed = sum(2 * one.matrix.size * (length if one.block < shape.layers else self.tokens + 1) for one in self.of(setting))
        tested = 2 * self.size(setting) * self.keys
        return self.again * self.texts * (forward(shape, length, length**2, self.tokens + 1) + self.parts * (back + formed + tested))

    def bytes(self, setting: Setting) -> Bytes:
        shape, lowest, width = setting.shape, self.lowest(setting), BYTES[setting.scoring]
        a_block = width * (3 * shape.intermediate + 2 * shape.kv_width + 2 * shape.q_width) + 2 * FLOAT * shape.hidden  # kept for the backward pass
        blocks = max(0, shape.layers - 1 - lowest.block) + (lowest.matrix.stage < 2)
        own = width * (lowest.matrix.d_in + lowest.matrix.d_out + shape.intermediate * (lowest.matrix.stage == 2))
        activations = self.rows * self.length * (blocks * a_block + own + at_once(shape, width))
        logits = shape.vocabulary * (2 * width * self.rows * (self.tokens + 1) + 2 * FLOAT * self.tokens)  # and their gradient; a text's in float32
        copies = shape.parameters * width if width > BYTES[setting.held] else 0
        units = 3 * min(self.keys, UNITS, self.texts * self.parts)  # G, its unit, and their stack
        formed = sum(one.matrix.size for one in self.of(setting))
        gradients = FLOAT * (2 * formed + self.size(setting) * units) + self.kept(setting)
        return Bytes(self.copied(setting) + copies, 0, activations, logits, gradients, self.noises(setting))


@dataclass(frozen=True)
class Train(Step):
    """Optimiser steps on so many tokens: every weight has a gradient and the optimiser's state."""

    def flops(self, setting: Setting) -> float:
        return 3 * forward(setting.shape, self.n_tokens, self.n_tokens * self.length, self.n_tokens)

    def bytes(self, setting: Setting) -> Bytes:
        shape, width = setting.shape, FLOAT
        a_block = width * (3 * shape.intermediate + 2 * shape.kv_width + 6 * shape.hidden)
        activations = self.rows * self.length * (shape.layers * a_block + at_once(shape, width))
        return Bytes(
            copies=shape.parameters * 3 * width,
            activations=activations,
            logits=3 * width * self.rows * self.length * shape.vocabulary,
        )

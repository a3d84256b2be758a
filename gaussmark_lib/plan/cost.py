"""What a piece of work costs on a model: floating-point operations, and bytes at its peak.

    forward pass of a token   2·(matrices that it passes) + 4·(width of the queries)·(positions) a
    block, and 2·H·V where something is predicted backward pass             2·(matrices after the
    watermarked one), 2.5 times the attention of the blocks above, 2·H·V a prediction G of a text
    2·d_out·d_in a token;   ψ of a text and key: 2·d_out·d_in

Only activations have a gradient, no weight, so going backward costs what going forward does.
Attention is counted for all pairs of positions, as kernels with a mask compute it. Memory is that
of this library's code, phase by phase: each ``Bytes`` names tensors that live at the same time, and
a step needs what its largest phase does. tests/oracle/plan holds both against measurements.
"""

from dataclasses import dataclass

from gaussmark_lib.plan.shapes import BYTES, Shape, Weight
from gaussmark_lib.plan.steps import DRAWN, FLOAT, Bytes, Setting, Step

PICK, PICK_TOP_P = (
    28,
    52,
    # bytes a row and word of the vocabulary while a token is drawn, in float64: the distribution
    # and
    # what it is made from
)
PUT = 24  # while it is put into a weight: as float32 and float64, θ + ξ, and what was added to θ
RESIDUAL = 3  # copies of the residual stream that live between a block's operations
UNITS = (
    32  # texts whose unit gradients score.score holds together, at most, where it holds all noises
)
AT_A_TIME = 512  # positions whose logits are held together (likelihood.ROWS)
WHOLE, CHANGED = (
    3,
    2,
    # logits of all positions that live together, where they are not made in parts, and what a
    # change
    # leaves for its gradient
)
# attention scores of a pair of positions and head that live together: in a block that attends, and
# kept of one that is differentiated
SCORES = 2
HELD, FEW_KEYS, FEW_TEXTS = (
    1 << 30,
    4,
    8,
)  # as in score: bytes of noises, and of gradients, and how many of them whatever their size


def forward(shape: Shape, tokens: float, pairs: float, predicted: float) -> float:
    """Operations of a forward pass of so many tokens with so many pairs of positions, of which so
    many predict a token.
    """
    return (
        2 * shape.layers * (shape.block_size * tokens + 2 * shape.q_width * pairs)
        + 2 * shape.head_size * predicted
    )


def at_once(shape: Shape, rows: int, length: int, width: int) -> float:
    """Bytes of what a block computes at once: the MLP's inner layers, or queries, keys and values;
    the residual stream; and scores.
    """
    widest = max(3 * shape.intermediate, 2 * shape.q_width + 2 * shape.kv_width)
    return width * rows * length * (widest + RESIDUAL * shape.hidden) + scores(shape, rows, length)


def scores(shape: Shape, rows: int, length: int, blocks: int = 1) -> float:
    """Bytes of these blocks' attention scores in float32: 0 with a fused kernel, which
    holds none.
    """
    return SCORES * FLOAT * rows * length**2 * shape.pair * blocks


def at_head(shape: Shape, positions: int, width: int, weight: Weight | None = None) -> float:
    """Bytes of the logits of a part of the positions, and of their log-probabilities, which become
    their gradient.

    Of all positions, several times, where something is done to the logits after the head, and where
    the weight that is scored is the head itself.
    """
    if not shape.ends_in_its_head or (weight and weight.block == shape.layers):
        if weight is None:  # the last of them is made in parts
            return ((WHOLE - 1) * positions + min(positions, AT_A_TIME)) * shape.vocabulary * width
        return (
            positions
            * shape.vocabulary
            * width
            * (WHOLE if shape.ends_in_its_head else WHOLE + CHANGED)
        )
    return (
        min(positions, AT_A_TIME)
        * shape.vocabulary
        * (width + FLOAT if width >= FLOAT else 2 * (width + FLOAT))
    )


@dataclass(frozen=True)
class Write(Step):
    """Texts sampled with a cache. With ``keys``, ``generate_many`` adds their noises to the layer's
    output; else a noise is put into the weight.
    """

    batch: int = 64

    @property
    def calls(self) -> int:
        return super().calls * self.tokens

    def flops(self, setting: Setting) -> float:
        pairs, tokens = (
            self.prompt**2 + sum(range(self.prompt + 1, self.length)),
            self.texts * (self.length - 1),
        )
        added = (
            2 * (self.size(setting) + setting.shape.beside(self.of(setting)[0])) * tokens
            if self.keys
            else 0
        )
        return forward(setting.shape, tokens, self.texts * pairs, self.texts * self.tokens) + added

    def phases(self, setting: Setting) -> list[Bytes]:
        shape, width, weight = setting.shape, BYTES[setting.held], self.of(setting)[0]
        always = {"copies": self.copied(setting), "gradients": self.kept(setting)}
        cache = 2 * self.rows * self.length * shape.layers * shape.kv_width * width
        read = at_once(
            shape, self.rows, self.prompt, width
        ) + self.rows * self.prompt * 2 * width * weight.matrix.d_out * bool(self.keys)
        logits = (
            self.rows * shape.vocabulary * (width + (PICK if setting.top_p == 1 else PICK_TOP_P))
        )
        put = FLOAT + width if self.drawn and not self.keys else 0  # ξ, and θ as it was
        noises = weight.matrix.size * (width * self.keys + put)
        drawing = weight.matrix.size * (width * self.keys + PUT * bool(self.drawn))
        return [
            Bytes(**always, noises=drawing),
            Bytes(**always, noises=noises, cache=cache, activations=read),
            Bytes(**always, noises=noises, cache=cache, logits=logits),
        ]


@dataclass(frozen=True)
class Read(Step):
    """Texts whose probabilities are read off ``times`` forward passes. ``whole``: two models'
    log-probabilities of all positions are compared.
    """

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
        return (
            self.times
            * self.texts
            * forward(setting.shape, self.length, self.length**2, self._predicted())
        )

    def phases(self, setting: Setting) -> list[Bytes]:
        shape, width, size = setting.shape, BYTES[setting.held], self.size(setting)
        always = {"copies": self.copied(setting), "gradients": self.kept(setting)}
        positions, stream = self.rows * self.length, RESIDUAL * shape.hidden * width
        noises = size * (FLOAT + width) * bool(self.drawn)
        if self.whole:  # two models' log-probabilities, their difference and its mean
            logits = positions * shape.vocabulary * width
            read = {
                "activations": positions * stream,
                "logits": 5 * FLOAT * positions * shape.vocabulary,
            }
        else:  # the logits of some positions at a time, when the activations are gone
            logits = at_head(shape, self.rows * self.tokens, width)
            read = {"logits": logits}
        return [
            Bytes(**always, noises=size * PUT * bool(self.drawn)),
            Bytes(
                **always, noises=noises, activations=at_once(shape, self.rows, self.length, width)
            ),
            Bytes(**always, noises=noises, activations=positions * stream, logits=logits),
            Bytes(**always, noises=noises, **read),
        ]


@dataclass(frozen=True)
class Score(Step):
    """Texts whose gradients for ``weights`` are formed, in ``parts`` backward passes (one a
    length), and tested under ``keys`` noises.
    """

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
        beside = 2 * length * sum(shape.beside(one) for one in self.of(setting))
        formed = sum(
            self._formed(one, length if one.block < shape.layers else self.tokens + 1)
            for one in self.of(setting)
        )
        tested = 2 * self.size(setting) * self.keys
        return (
            self.again
            * self.texts
            * (
                forward(shape, length, length**2, self.tokens + 1)
                + beside
                + self.parts * (back + formed + tested)
            )
        )

    def _formed(self, weight: Weight, n: int) -> float:
        """G of n terms, or, where no key asks for more, its norm from them."""
        d_out, d_in = weight.matrix.d_out, weight.matrix.d_in
        return 2 * n * (d_out * d_in if self.keys else min(d_out * d_in, n * (d_out + d_in)))

    def phases(self, setting: Setting) -> list[Bytes]:
        shape, lowest, width = setting.shape, self.lowest(setting), BYTES[setting.scoring]
        size, positions = self.size(setting), self.rows * self.length
        formed = max(one.matrix.size for one in self.of(setting))  # one at a time
        fitting = HELD // (FLOAT * size)
        keys, held = (
            min(self.keys, max(FEW_KEYS, fitting)),
            min(self.keys, UNITS),
        )  # noises, and gradients that are tested together
        held = min(held if keys == self.keys else max(FEW_TEXTS, fitting), self.texts * self.parts)
        earlier = max(0, held - self.rows)  # those of them that earlier batches left
        wider = shape.parameters * width if width > BYTES[setting.held] else 0
        always = {"copies": self.copied(setting) + wider}
        noises = FLOAT * size * keys
        drawing = noises + DRAWN * size * bool(self.drawn)
        a_block = (
            width * (3 * shape.intermediate + 2 * shape.kv_width + 2 * shape.q_width)
            + 2 * FLOAT * shape.hidden
        )  # kept to go backward
        blocks = max(0, shape.layers - 1 - lowest.block) + (lowest.matrix.stage < 2)
        inner = width * shape.intermediate * (lowest.matrix.stage == 2)
        factors = (
            positions * width * sum(one.matrix.d_in + one.matrix.d_out for one in self.of(setting))
        )
        graph = (
            positions * (blocks * a_block + inner)
            + factors
            + scores(shape, self.rows, self.length, shape.after(lowest)[1])
        )
        logits = at_head(shape, self.rows * self.tokens, width, lowest)
        before, after = (
            self.kept(setting) + FLOAT * size * earlier,
            self.kept(setting) + FLOAT * (2 * formed + size * (held + 1)),
        )
        return [
            Bytes(copies=self.copied(setting), noises=drawing, gradients=self.kept(setting)),
            Bytes(
                **always,
                noises=noises,
                gradients=before,
                activations=graph + at_once(shape, self.rows, self.length, width),
            ),
            Bytes(**always, noises=noises, gradients=before, activations=graph, logits=logits),
            Bytes(
                **always, noises=noises, gradients=after, activations=factors * self.parts
            ),  # of the slopes, one a part
        ]


@dataclass(frozen=True)
class Train(Step):
    """Optimiser steps on so many tokens: every weight has a gradient and the optimiser's state."""

    def flops(self, setting: Setting) -> float:
        return 3 * forward(setting.shape, self.n_tokens, self.n_tokens * self.length, self.n_tokens)

    def phases(self, setting: Setting) -> list[Bytes]:
        shape, positions = setting.shape, self.rows * self.length
        a_block = FLOAT * (4 * shape.intermediate + 4 * shape.kv_width + 6 * shape.hidden)
        logits = 3 * FLOAT * positions * shape.vocabulary
        return [
            Bytes(
                copies=3 * FLOAT * shape.parameters,
                activations=positions * shape.layers * a_block,
                logits=logits,
            )
        ]

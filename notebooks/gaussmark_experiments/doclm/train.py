"""Train the embedded model: a byte-level BPE and a small Llama, on the documentation corpus.

The same recipe, seed and corpus give the same weights on the same machine, also if a run is stopped
and resumed: a batch depends only on (seed, step).
"""

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gaussmark_lib import files, models
from gaussmark_lib.errors import InvalidTextError, ParameterError

END = "<|endoftext|>"
# coefficients of Muon's quintic
A = 3.4445
B = -4.7750
C = 2.0315


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, except the corpus. Lengths are in BPE tokens."""

    vocab: int = 4096
    hidden: int = 256
    blocks: int = 6
    heads: int = 4
    intermediate: int = 768
    context: int = 1024
    short_context: int = 256
    long_share: float = 0.12  # of the steps, the last ones, at the full context
    batch_tokens: int = 4096
    steps: int = 2800
    warmup: int = 60
    decay_share: float = 0.5  # of the steps, the last ones: the learning rate falls to zero
    lr_matrices: float = 6e-3  # Muon
    lr_others: float = 3e-3  # AdamW: embeddings and norms
    weight_decay: float = 0.05
    seed: int = 0

    def context_at(self, step: int) -> int:
        """Return the length of the windows at a step."""
        first_long_step = self.steps * (1 - self.long_share)
        return self.context if step >= first_long_step else self.short_context

    def lr_factor_at(self, step: int) -> float:
        """Return the factor of the learning rate: linear warm-up, constant, then linear to zero."""
        warmup = (step + 1) / self.warmup
        decay = (self.steps - step) / (self.steps * self.decay_share)
        return min(1.0, warmup, decay)


def pages(corpus: pd.DataFrame, split: str) -> list[str]:
    """Join the paragraphs of a split, file by file, by blank lines."""
    of_split = corpus[corpus["split"] == split]
    by_file = of_split.groupby("source")["text"]
    return by_file.apply("\n\n".join).tolist()


def enough(pages: list[str], n_tokens: int) -> list[str]:
    """Return every k-th page, or all pages if there are few. The pages have about ten times the
    text that training on ``n_tokens`` reads (at five characters per token), and at least two
    million characters.
    """
    n_characters = sum(map(len, pages))
    wanted = max(50 * n_tokens, 2_000_000)
    k = max(1, n_characters // wanted)
    return pages[::k]


def train_tokenizer(texts: list[str], vocab: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE, which can encode any text. Its only special token ends a text, and
    pads.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        clean_up_tokenization_spaces=False,
        bos_token=END,
        eos_token=END,
        pad_token=END,
    )


def token_stream(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """Encode all texts as one row of token ids, with the end token before each text."""
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    with_end_tokens = [[tokenizer.eos_token_id, *ids] for ids in encoded]
    stream = np.concatenate(with_end_tokens)
    return torch.tensor(stream, dtype=torch.int32)


def new_model(recipe: Recipe) -> LlamaForCausalLM:
    """Make a model with the random initial weights of the recipe's seed."""
    config = LlamaConfig(
        vocab_size=recipe.vocab,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.blocks,
        num_attention_heads=recipe.heads,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        bos_token_id=0,  # END, the first of the tokenizer
        eos_token_id=0,
        pad_token_id=0,
        use_cache=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return LlamaForCausalLM(config)


def batch_at(stream: Tensor, recipe: Recipe, step: int) -> Tensor:
    """Return the batch of a step, (batch_tokens / context, context + 1): windows of the stream in
    random order.

    Each epoch has another order and another phase, so the cuts between windows move too.
    """
    context = recipe.context_at(step)
    rows = recipe.batch_tokens // context
    per_epoch = (len(stream) - 1 - context) // context // rows
    if per_epoch < 1:
        raise InvalidTextError(
            f"expected a corpus of at least {context * (rows + 1) + 1} tokens, for a batch of"
            f" {rows} windows of {context}, got {len(stream)}; add text"
        )
    epoch, index = divmod(step, per_epoch)
    rng = np.random.default_rng([recipe.seed, context, epoch])
    phase = int(rng.integers(context))  # where the first window begins
    order = rng.permutation(per_epoch * rows)
    chosen = order[index * rows : (index + 1) * rows]
    windows = stream[phase:].unfold(0, context + 1, context)  # (windows, context + 1)
    return windows[chosen].long()


@torch.no_grad()
def bits_per_character(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> dict[str, float]:
    """Return −Σ log₂ p / number of characters: how well a model compresses texts, which does not
    depend on its tokens.

    The texts form one stream with an end token before each text, which is predicted like any other
    token. Windows have the length of the model's context, move on by half of it, and score their
    second half. So each token except the first is scored once, with at least half a context before
    it.

    Returns ``bits_per_char``, ``nats_per_token`` (mean), ``tokens``, ``characters``.
    """
    stream = token_stream(tokenizer, texts).long().to(model.device)
    context = model.config.max_position_embeddings
    before = context - context // 2
    nats = 0.0
    for start in range(0, max(len(stream) - 1 - before, 1), context // 2):
        window = stream[start : start + context + 1]
        scored = before if start else 0  # the window before scored what stands before
        logits = model(input_ids=window[None, :-1]).logits[0, scored:].float()
        loss = cross_entropy(logits, window[1 + scored :], reduction="sum")
        nats += loss.item()
    tokens = len(stream) - 1
    characters = sum(map(len, texts))
    return {
        "bits_per_char": nats / math.log(2) / characters,
        "nats_per_token": nats / tokens,
        "tokens": tokens,
        "characters": characters,
    }


def orthogonalise(matrix: Tensor) -> Tensor:
    """Push the singular values of a matrix towards 1 (the results lie in about 0.7–1.2)."""
    # the product below is smallest for a wide matrix
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp_min(1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x if wide is matrix else x.T


class Muon(torch.optim.Optimizer):
    """Muon in float32: Nesterov momentum whose update is replaced by its nearest orthogonal matrix.
    A step's root mean square is 0.2·lr, so AdamW's learning rates carry over.

    ``torch.optim.Muon`` iterates in bfloat16, which a CPU without bfloat16 units emulates about a
    hundred times slower than float32. This one keeps the parameter's dtype. Source: K. Jordan et
    al., "Muon: an optimizer for hidden layers in neural networks" (2024), whose quintic
    coefficients are torch's too.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """Update all parameters from their gradients."""
        for group in self.param_groups:
            lr = group["lr"]
            momentum = group["momentum"]
            for parameter in group["params"]:
                state = self.state[parameter]
                buffer = state.setdefault("momentum", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - momentum)
                nesterov = parameter.grad.lerp(buffer, momentum)
                update = orthogonalise(nesterov)
                scale = 0.2 * max(parameter.shape) ** 0.5 * lr
                parameter.mul_(1 - lr * group["weight_decay"])
                parameter.sub_(update, alpha=scale)


def train(
    recipe: Recipe,
    stream: Tensor,
    *,
    checkpoint: Path | None = None,
    every: int = 200,
    held_out: Tensor | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> tuple[LlamaForCausalLM, pd.DataFrame]:
    """Train a model on a token stream. Return the model, with the stream's token counts in its
    config, and its curve (``step, tokens, loss, held_out, seconds``).

    Args:
        checkpoint: a file that holds the state; if it exists, the run continues from it.
        every: steps between two rows of the curve, and between two checkpoints.
        held_out: a stream whose first 64 windows of ``short_context`` tokens are scored with every
            row of the curve (nats per token).
    """
    where = torch.device(device)
    # bfloat16 only if the hardware multiplies it natively; emulated, it is far slower than float32
    autocast = torch.autocast(where.type, torch.bfloat16, enabled=models.native_bfloat16(where))
    model = new_model(recipe).to(where)
    muon, adamw = _optimisers(model, recipe)
    peaks = {muon: recipe.lr_matrices, adamw: recipe.lr_others}
    parts = {"model": model, "muon": muon, "adamw": adamw}
    step = 0
    curve = []
    losses = []  # of the steps since the last row of the curve
    if checkpoint and checkpoint.exists():
        step, curve = _resumed(checkpoint, recipe, parts)
    seconds_before = curve[-1]["seconds"] if curve else 0.0
    started = time.monotonic() - seconds_before
    bar = tqdm(total=recipe.steps, initial=step, desc="training", unit="step", disable=not progress)
    while step < recipe.steps:
        ids = batch_at(stream, recipe, step).to(where)
        with autocast:
            loss = _loss(model, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in peaks.items():
            optimizer.param_groups[0]["lr"] = peak * recipe.lr_factor_at(step)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        step += 1
        bar.update()
        if step % every == 0 or step == recipe.steps:
            mean_loss = torch.stack(losses).mean().item()
            losses = []
            point = {
                "step": step,
                "tokens": step * recipe.batch_tokens,
                "loss": mean_loss,
                "held_out": _held_out(model, held_out, recipe),
                "seconds": time.monotonic() - started,
            }
            curve.append(point)
            bar.set_postfix(loss=mean_loss)
            if checkpoint:
                _save(checkpoint, parts, recipe=asdict(recipe), step=step, curve=curve)
    bar.close()
    counts = torch.bincount(stream.long(), minlength=recipe.vocab)
    model.config.unigrams = counts.tolist()  # what ``channel`` takes exchanged tokens to come from
    return model.eval(), pd.DataFrame(curve)


def _optimisers(model: LlamaForCausalLM, recipe: Recipe) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the matrices of the blocks, AdamW for all other parameters."""
    matrices = []
    embeddings_and_norms = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and "layers." in name
        if is_matrix:
            matrices.append(parameter)
        else:
            embeddings_and_norms.append(parameter)
    muon = Muon(matrices, lr=recipe.lr_matrices, weight_decay=recipe.weight_decay)
    adamw = torch.optim.AdamW(
        embeddings_and_norms,
        betas=(0.9, 0.98),
        weight_decay=0.0,
        fused=True,
    )
    return muon, adamw


def _resumed(path: Path, recipe: Recipe, parts: dict[str, Any]) -> tuple[int, list[dict]]:
    """Load a checkpoint into the model and its optimisers. Return its step and its curve."""
    state = torch.load(path, weights_only=True)
    if state["recipe"] != asdict(recipe):
        raise ParameterError(
            f"{path} holds a run of another recipe: expected {asdict(recipe)}, got"
            f" {state['recipe']}; remove the file or name another"
        )
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return state["step"], state["curve"]


def _save(path: Path, parts: dict[str, Any], **progress: Any) -> None:
    """Save a checkpoint. The last checkpoint stays until the new file is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.hidden_folder(path) as partial:
        state = {name: part.state_dict() for name, part in parts.items()}
        complete = Path(partial) / path.name
        torch.save(state | progress, complete)
        complete.replace(path)


def _loss(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Mean −log p of all tokens except the first of each row, nats."""
    logits = model(input_ids=ids[:, :-1]).logits.float()
    return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def _held_out(model: LlamaForCausalLM, stream: Tensor | None, recipe: Recipe) -> float:
    if stream is None:
        return math.nan
    windows = stream.unfold(0, recipe.short_context + 1, recipe.short_context)  # (windows, n + 1)
    scored = windows[:64].long().to(model.device)
    losses = [_loss(model, ids) for ids in scored.split(16)]
    return torch.stack(losses).mean().item()

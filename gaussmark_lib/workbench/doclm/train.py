"""How the embedded model is made: a byte-level BPE and a small Llama, trained on the documentation
corpus.

One recipe, seed and corpus give the same weights on the same machine, also if a run is stopped and
resumed: a batch depends on (seed, step) alone.
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
A, B, C = 3.4445, -4.7750, 2.0315  # of Muon's quintic


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, besides the corpus. Tokens and contexts are counted in
    BPE tokens.
    """

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
        return self.context if step >= self.steps * (1 - self.long_share) else self.short_context

    def lr_factor_at(self, step: int) -> float:
        """Linear warm-up, constant, then linear to zero."""
        decay = (self.steps - step) / (self.steps * self.decay_share)
        return min(1.0, (step + 1) / self.warmup, decay)


def pages(corpus: pd.DataFrame, split: str) -> list[str]:
    """The paragraphs of one split, joined file by file with a blank line between them."""
    return corpus[corpus["split"] == split].groupby("source")["text"].apply("\n\n".join).tolist()


def enough(pages: list[str], n_tokens: int) -> list[str]:
    """Every k-th page, so that they hold about ten times the text that training on ``n_tokens``
    reads (at five characters per token), and two million characters at least; or all pages.
    """
    return pages[:: max(1, sum(map(len, pages)) // max(50 * n_tokens, 2_000_000))]


def train_tokenizer(texts: list[str], vocab: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE (any text round-trips) whose one special token ends a text and pads."""
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
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, clean_up_tokenization_spaces=False, **special
    )


def token_stream(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """All texts as one row of token ids, each preceded by the end token."""
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return torch.tensor(
        np.concatenate([[tokenizer.eos_token_id, *ids] for ids in encoded]), dtype=torch.int32
    )


def new_model(recipe: Recipe) -> LlamaForCausalLM:
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
    """The batch of a step, (batch_tokens / context, context + 1): windows of a random permutation.

    Each epoch has another permutation and another phase, so the cuts between windows move too.
    """
    context = recipe.context_at(step)
    rows = recipe.batch_tokens // context
    per_epoch = (len(stream) - 1 - context) // context // rows
    if per_epoch < 1:
        raise InvalidTextError(
            f"the corpus has {len(stream)} tokens, a batch of {rows} windows of {context} needs"
            f" {context * (rows + 1) + 1}"
        )
    epoch, index = divmod(step, per_epoch)
    rng = np.random.default_rng([recipe.seed, context, epoch])
    phase = int(rng.integers(context))
    chosen = rng.permutation(per_epoch * rows)[index * rows : (index + 1) * rows]
    return stream[phase:].unfold(0, context + 1, context)[chosen].long()


@torch.no_grad()
def bits_per_character(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> dict[str, float]:
    """−Σ log₂ p / number of characters: how well a model compresses texts, whatever its tokens.

    The texts form one stream, each after an end token, which is predicted like any other. Windows
    of the model's context move on by half of it and score their second half: every token but the
    first once, with at least half a context before it.

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
        nats += cross_entropy(logits, window[1 + scored :], reduction="sum").item()
    tokens, characters = len(stream) - 1, sum(map(len, texts))
    return {
        "bits_per_char": nats / math.log(2) / characters,
        "nats_per_token": nats / tokens,
        "tokens": tokens,
        "characters": characters,
    }


def orthogonalise(matrix: Tensor) -> Tensor:
    """Pushes the singular values of a matrix towards 1 (they land in about 0.7–1.2)."""
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
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(buffer, group["momentum"]))
                scale = 0.2 * max(p.shape) ** 0.5 * group["lr"]
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)


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
    """Trains a model on a token stream; returns it, with the stream's counts in its config, and its
    curve (``step, tokens, loss, held_out, seconds``).

    Args:
        checkpoint: a file that holds the state; where it exists, the run goes on from it.
        every: steps between two rows of the curve, and between two checkpoints.
        held_out: a stream whose first 64 windows of ``short_context`` tokens are scored with every
            row of the curve (nats per token).
    """
    where = torch.device(device)
    # bfloat16 where the hardware multiplies it natively; emulated, it is far slower than float32
    autocast = torch.autocast(where.type, torch.bfloat16, enabled=models.native_bfloat16(where))
    model = new_model(recipe).to(where)
    named = dict(model.named_parameters())
    inner = [name for name, p in named.items() if p.ndim == 2 and "layers." in name]
    matrices, others = [named.pop(name) for name in inner], list(named.values())
    muon = Muon(matrices, lr=recipe.lr_matrices, weight_decay=recipe.weight_decay)
    adamw = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    peaks = {muon: recipe.lr_matrices, adamw: recipe.lr_others}
    parts = {"model": model, "muon": muon, "adamw": adamw}
    step, curve, losses = 0, [], []
    if checkpoint and checkpoint.exists():
        step, curve = _resumed(checkpoint, recipe, parts)
    started = time.monotonic() - (curve[-1]["seconds"] if curve else 0.0)
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
            mean, losses = torch.stack(losses).mean().item(), []
            point = {"step": step, "tokens": step * recipe.batch_tokens, "loss": mean}
            point |= {"held_out": _held_out(model, held_out, recipe)}
            curve.append(point | {"seconds": time.monotonic() - started})
            bar.set_postfix(loss=mean)
            if checkpoint:
                _save(checkpoint, parts, recipe=asdict(recipe), step=step, curve=curve)
    bar.close()
    counts = torch.bincount(stream.long(), minlength=recipe.vocab)
    model.config.unigrams = counts.tolist()  # what ``channel`` takes exchanged tokens to come from
    return model.eval(), pd.DataFrame(curve)


def _resumed(path: Path, recipe: Recipe, parts: dict[str, Any]) -> tuple[int, list[dict]]:
    """Loads a checkpoint into the model and its optimisers; its step and its curve."""
    state = torch.load(path, weights_only=True)
    if state["recipe"] != asdict(recipe):
        raise ParameterError(
            f"{path} holds a run of another recipe: expected {asdict(recipe)}, got"
            f" {state['recipe']}; remove it or name another file"
        )
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return state["step"], state["curve"]


def _save(path: Path, parts: dict[str, Any], **progress: Any) -> None:
    """The last checkpoint stays until the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.hidden_folder(path) as partial:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save(state | progress, Path(partial) / path.name)
        (Path(partial) / path.name).replace(path)


def _loss(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Mean −log p of every token of each row but the first, nats."""
    logits = model(input_ids=ids[:, :-1]).logits.float()
    return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def _held_out(model: LlamaForCausalLM, stream: Tensor | None, recipe: Recipe) -> float:
    if stream is None:
        return math.nan
    windows = stream.unfold(0, recipe.short_context + 1, recipe.short_context)[:64].long()
    return (
        torch.stack([_loss(model, ids) for ids in windows.to(model.device).split(16)]).mean().item()
    )

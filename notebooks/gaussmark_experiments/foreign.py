"""Do the notebooks run on other models? Three small models of other architectures, each with its
own tokenizer, are trained on the corpus, and every notebook runs on each with its defaults.

    python -m gaussmark_experiments.foreign FOLDER               all three, all notebooks
    python -m gaussmark_experiments.foreign FOLDER gpt2 03 17    one model, two notebooks
    python -m gaussmark_experiments.foreign FOLDER small         small parameters, as in the tests

Models and records stay in FOLDER: a second call trains nothing again, and continues. No test reads
the sentences in these records, so read them: is each true of this model? It takes many minutes of a
core per model.
"""

import sys
import tomllib
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from gaussmark_experiments.doclm import train
from gaussmark_lib import files
from gaussmark_lib.engine import checkpoints, corpus
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.runs import notebook as notebooks

RECIPE = train.Recipe(hidden=192, intermediate=512, context=512, steps=600)
VOCABULARIES = {"gpt2": 3000, "qwen2": 3500, "mistral": 2500}
SMALL = "small"
SIZES = files.ROOT / "tests" / "notebooks" / "other_parameters.toml"
# Values that name its matrices, or need its last block's.
OF_DOCLM = {"weight", "exchange_weights", "others", "model_dtype", "null_schemes"}
WITHOUT_MODEL = {"20_train_doclm", "16_theory_in_full"}  # notebooks that load no other model


def untrained(name: str) -> PreTrainedModel:
    common = {
        "vocab_size": VOCABULARIES[name],
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    if name == "gpt2":
        config = GPT2Config(
            n_positions=RECIPE.context,
            n_embd=RECIPE.hidden,
            n_layer=RECIPE.blocks,
            n_head=RECIPE.heads,
            **common,
        )
        return GPT2LMHeadModel(config)
    common |= {
        "hidden_size": RECIPE.hidden,
        "intermediate_size": RECIPE.intermediate,
        "num_hidden_layers": RECIPE.blocks,
        "num_attention_heads": RECIPE.heads,
        "num_key_value_heads": RECIPE.heads // 2,  # so that k and v have another shape than q
        "max_position_embeddings": RECIPE.context,
    }
    if name == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, **common))
    return MistralForCausalLM(MistralConfig(**common))


def trained(name: str, folder: Path) -> Path:
    """A checkpoint, with its tokenizer."""
    if (folder / "config.json").exists():  # of an earlier call
        return folder
    pages = train.pages(corpus.load(), "train")
    texts = train.enough(pages, RECIPE.steps * RECIPE.batch_tokens)
    tokenizer = train.train_tokenizer(texts, VOCABULARIES[name])
    model = untrained(name).train().to(checkpoints.device_of(None))
    stream = train.token_stream(tokenizer, texts)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RECIPE.lr_others, betas=(0.9, 0.98))
    for step in range(RECIPE.steps):
        ids = train.batch_at(stream, RECIPE, step).to(model.device)  # (rows, context + 1)
        logits = model(input_ids=ids[:, :-1]).logits
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.param_groups[0]["lr"] = RECIPE.lr_others * RECIPE.lr_factor_at(step)
        optimiser.step()
        optimiser.zero_grad()
        if step % 50 == 0:
            print(f"{name}: step {step} of {RECIPE.steps}, {loss.item():.2f} nats", flush=True)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main(folder: str, *words: str) -> int:
    names = [word for word in words if word in VOCABULARIES] or [*VOCABULARIES]
    numbers = [word for word in words if word not in {*VOCABULARIES, SMALL}]
    small_sizes = tomllib.loads(SIZES.read_text(encoding="utf-8"))
    failed = 0
    for name in names:
        model = trained(name, Path(folder, name).resolve())
        for source in map(notebooks.load, notebooks.numbered()):
            if source.name in WITHOUT_MODEL or (numbers and source.name[:2] not in numbers):
                continue
            sizes = small_sizes[source.name] if SMALL in words else {}
            values = {n: value for n, value in sizes.items() if n not in OF_DOCLM}
            values["model"] = str(model)
            try:
                run = runs.run(source, values, root=Path(folder, "records", name), progress=False)
                print(f"{name}  {source.name:28} {run.dir}", flush=True)
            except (GaussMarkError, runs.RunFailedError) as error:
                failed += 1
                print(f"{name}  {source.name:28} FAILED: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

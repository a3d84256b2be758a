"""Promised against realised power over fresh keys: how well ``detect`` keeps its promise.

    python -m gaussmark_experiments.promised_power --questions FILE.jsonl --out build/promise

Each cell writes one text per fresh key, reads it back from its characters without the prompt, as
``detect`` does, and compares what ``verdict.promised`` says of the text with whether its key finds
it. A text with a caution has no promise and is counted apart.

Declared before the run: 400 keys per cell, which no earlier measurement used (seeds from
70,000,000 on), SmolLM2 on questions of a chat and doclm on documentation, 200 tokens. The promise
holds in a cell if the 95% interval of promised − realised power lies within ±.10, at level .05 and
at level .01. The rule (``promise.LOST_OF_ANSWER`` = 30 tokens) was chosen on other keys.
"""

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from gaussmark_lib import generate, models, score, stats, texts
from gaussmark_lib.beyond import channel, promise
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import Watermark
from gaussmark_lib.workbench import verdict

WATERMARKS = {
    "smollm2": Watermark("model.layers.20.mlp.down_proj.weight", 0.114),
    "doclm": Watermark("model.layers.4.mlp.down_proj.weight", 0.12),
}
EXCHANGED = 0.1  # as `detect` by default
N_TOKENS = 200
FIRST_KEY = 70_000_000
LEVELS = (0.05, 0.01)


class Cell(NamedTuple):
    """A model and how it is sampled."""

    model: str
    temperature: float
    top_p: float = 1.0


CELLS = {
    "smollm2, temperature .3": Cell("smollm2", 0.3),
    "smollm2, temperature .5": Cell("smollm2", 0.5),
    "smollm2, temperature .7": Cell("smollm2", 0.7),
    "smollm2, top-p .9": Cell("smollm2", 1.0, 0.9),
    "smollm2, temperature 1": Cell("smollm2", 1.0),
    "doclm, temperature 1": Cell("doclm", 1.0),
}


def prompts_for(lm: models.LM, questions: list[str], n: int) -> list[list[int]]:
    """Questions for a chat model, in turn; documentation for doclm."""
    if lm.is_chat:
        return [lm.prompt(questions[number % len(questions)]) for number in range(n)]
    return texts.prompts(lm, "docs", n, 16)


def measured(lm: models.LM, cell: Cell, prompts: list[list[int]], first_key: int) -> pd.DataFrame:
    """One row per key: what was promised at each level, and the p-value that came."""
    wm = WATERMARKS[cell.model]
    keys = [Key.from_seed(first_key + number) for number in range(len(prompts))]
    written = generate.sample(
        lm.model,
        prompts,
        N_TOKENS,
        temperature=cell.temperature,
        top_p=cell.top_p,
        marks=[(wm, key) for key in keys],
        seed=first_key,
        batch_size=100,
    )
    # a detector sees characters, and knows no prompt
    responses = [lm.encode(lm.decode(ids)) for ids in written]
    unknown = [lm.unknown_prompt()] * len(responses)
    weigh = channel.weights(lm.model, EXCHANGED)
    promises = promise.table(
        lm.model,
        unknown,
        responses,
        wm,
        token_weights=weigh,
        unknown_prompt=lm.unknown_prompt(),
    )
    scores = score.score(
        lm.model,
        unknown,
        responses,
        wm,
        keys,
        paired=True,  # each text under the key that wrote it
        token_weights=weigh,
    )
    table = scores.merge(promises.drop(columns="n_tokens"), on="text")
    rows = table.to_dict("records")
    table["is_cautioned"] = [bool(verdict.cautions(row)) for row in rows]
    for level in LEVELS:
        table[f"promised {level}"] = [verdict.promised(row, wm.sigma, level) for row in rows]
    return table


def difference(table: pd.DataFrame, level: float) -> stats.Estimate:
    """Promised − realised power of the texts that got a promise."""
    rows = table[~table["is_cautioned"]]
    is_hit = rows["p_value"] <= level
    return stats.interval((rows[f"promised {level}"] - is_hit).to_numpy())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--questions", type=Path, required=True, help="JSONL, column instruction")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--n", type=int, default=400)
    parser.add_argument("--cell", action="append", choices=[*CELLS], help="default: all")
    arguments = parser.parse_args()
    lines = arguments.questions.read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["instruction"] for line in lines]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for number, (name, cell) in enumerate(CELLS.items()):
        if arguments.cell and name not in arguments.cell:
            continue
        start = time.monotonic()
        lm = models.load(cell.model)
        prompts = prompts_for(lm, questions, arguments.n)
        first_key = FIRST_KEY + 100_000 * number  # no two cells share a key
        table = measured(lm, cell, prompts, first_key)
        table.to_parquet(arguments.out / f"{number}.parquet")
        seconds = time.monotonic() - start
        print(f"{name}: {int(table['is_cautioned'].sum())} cautions; {seconds:.0f} s")
        for level in LEVELS:
            print(f"    level {level}: promised − realised {difference(table, level)}", flush=True)


if __name__ == "__main__":
    main()

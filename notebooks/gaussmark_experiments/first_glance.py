"""The README's picture: SmolLM2's answers to everyday questions, plain and watermarked.

    python -m gaussmark_experiments.first_glance

It takes about two minutes of one core. Every question has a key of its own. The picture shows the
pair whose watermarked answer has the median ψ, so it is neither the best nor the worst. The command
writes ``papermill_runs/reference/first_glance.parquet``, which has all pairs, and
``notebooks/pages/first_glance.png``, and prints the caption for the README.
"""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import norm

from gaussmark_lib import files, generate, models, perturb, score, stats
from gaussmark_lib.workbench import verdict
from gaussmark_lib.workbench.pairs import demonstration_keys
from gaussmark_lib.workbench.plots import style

MODEL = "smollm2"
SIGMA = 0.114  # of a new key (`gaussmark key new --model smollm2`): ψ = 4 at 200 tokens
TEMPERATURE = 0.7
MOST_TOKENS = 160
LEVEL = 0.01
PAIRS = files.RUNS / "reference" / "first_glance.parquet"
PICTURE = files.NOTEBOOKS / "pages" / "first_glance.png"
N_CHARACTERS = 560  # of each text; ψ and p are those of the whole text
WIDTH = 62  # characters of a line
QUESTIONS = [
    "Why do leaves change their colour in autumn?",
    "How do I keep bread fresh for a few days?",
    "What should I look at when I buy a used bicycle?",
    "Explain to a child why the moon changes its shape.",
    "How does a refrigerator keep food cold?",
    "Write a short letter that thanks a neighbour for help in the garden.",
    "What makes a good public library?",
    "How can I learn to cook without recipes?",
    "Why is the sea salty?",
    "What are the advantages of trains over planes?",
    "How do bees make honey?",
    "Give me some advice for a first job interview.",
    "Why do cats sleep so much?",
    "How should I plan a walk of several days?",
    "What is the difference between weather and climate?",
    "How did people tell the time before there were clocks?",
    "Describe a quiet morning in a small harbour.",
    "How do I start a vegetable garden on a balcony?",
    "Why do we need sleep?",
    "What can one person do to save energy at home?",
    "How does a bridge carry so much weight?",
    "Tell me about the life of a lighthouse keeper.",
    "How do vaccines work?",
    "What should a beginner know about photography?",
]


def written(lm: models.LM, questions: list[str]) -> pd.DataFrame:
    """Return a row per question: the token ids of ``prompt``, of the ``plain`` and of the
    ``watermarked`` answer, and ψ of both answers under the question's key (``psi_plain``,
    ``psi_watermarked``).
    """
    wm = perturb.Watermark(models.default_weight(lm.model), SIGMA)
    prompts = [lm.prompt(question) for question in questions]
    keys = demonstration_keys(len(questions), seed=0)
    sampling = {"n_tokens": MOST_TOKENS, "temperature": TEMPERATURE, "until_end": True}
    plain = generate.sample(lm.model, prompts, **sampling)
    marks = [(wm, key) for key in keys]
    watermarked = generate.sample(lm.model, prompts, marks=marks, **sampling)
    pairs = {"prompt": prompts, "plain": plain, "watermarked": watermarked}
    for kind in ("plain", "watermarked"):
        scores = score.score(lm.model, prompts, pairs[kind], wm, keys, paired=True)
        pairs[f"psi_{kind}"] = scores["psi"].to_numpy()
    return pd.DataFrame(pairs)


def typical(pairs: pd.DataFrame) -> pd.Series:
    """Return the pair whose watermarked text has the median ψ; of two, the smaller."""
    ranked = pairs.sort_values("psi_watermarked", kind="stable")
    return ranked.iloc[(len(ranked) - 1) // 2]


def shortened(text: str) -> str:
    """Return the beginning of a text, in lines; white space is made single spaces."""
    words = " ".join(text.split())
    beginning = textwrap.shorten(words, N_CHARACTERS, placeholder=" …")
    return textwrap.fill(beginning, WIDTH)


def draw(lm: models.LM, question: str, pair: pd.Series) -> Figure:
    """Draw both answers below their ψ and p, and the question above them."""
    figure = Figure(figsize=(9.6, 2.5), layout="constrained")
    figure.suptitle(question, fontsize="large", parse_math=False)
    kinds = {"plain": style.PLAIN, "watermarked": style.WATERMARKED}
    for axes, (kind, colour) in zip(figure.subplots(1, 2), kinds.items(), strict=True):
        psi = pair[f"psi_{kind}"]
        p_value = verdict.p_value(norm.logsf(psi) / np.log(10))
        axes.set_title(f"{kind}: ψ = {psi:.2f}, p = {p_value}", loc="left", color=colour)
        words = shortened(lm.decode(list(pair[kind])))
        axes.text(0, 1, words, va="top", linespacing=1.5, fontsize="small", parse_math=False)
        axes.axis("off")
    return figure


def caption(pairs: pd.DataFrame) -> str:
    """Return what the README says below the picture."""
    threshold = norm.isf(LEVEL)
    marked = stats.share(pairs["psi_watermarked"] >= threshold)
    plain = stats.share(pairs["psi_plain"] >= threshold)
    return (
        f"*SmolLM2 answers {len(pairs)} questions, each with a separate key (temperature"
        f" {TEMPERATURE:g}, at most {MOST_TOKENS} tokens); the pair with the median score is shown."
        " p is the probability of so high a score by chance. At level"
        f" {LEVEL:.0%}, {_counted(marked)} of the watermarked answers are detected, and"
        f" {_counted(plain)} of the plain ones.*"
    )


def _counted(share: stats.Estimate) -> str:
    n_hits = round(share.value * share.n)
    interval = f"{share.low:.0%} to {share.high:.0%}"
    return f"{n_hits} of {share.n} ({share.value:.0%}, {interval})"


def main() -> None:
    """Write the pairs and the picture, and print the caption."""
    lm = models.load(MODEL)
    pairs = written(lm, QUESTIONS)
    pairs.to_parquet(PAIRS)
    pair = typical(pairs)
    figure = draw(lm, QUESTIONS[pair.name], pair)
    figure.savefig(PICTURE, dpi=100, facecolor="white")
    print(caption(pairs))


if __name__ == "__main__":
    main()

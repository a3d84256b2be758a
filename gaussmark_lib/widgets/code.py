"""What the panel did, as the library's lines: runnable as they are, and without a key's secret. And
its settings as a preset.
"""

import json
from dataclasses import asdict

from gaussmark_lib.experiments.played import EDIT_SEED, Comparison, Edited, Question, Verdict

KEY_FILE = "playground_key.json"


def loaded(path: str) -> str:
    """How code gets a key that is saved there."""
    return f"Key(Key.load({path!r}).secret)  # without its binding, so that σ can be turned"


SAVED_KEY = f'{loaded(KEY_FILE)}; first press "Save the key"'


def generating(result: Comparison, model: str, key: str) -> str:
    """The lines behind a comparison; ``key`` is how code gets the key."""
    asked, n = result.question, result.question.n_samples
    return f"""from gaussmark_lib import generate, models, score
from gaussmark_lib.perturb import Key, Watermark, watermarked

lm = models.load({model!r})
key = {key}
wm = Watermark({asked.weight!r}, {result.wm.sigma!r})  \
# σ = ψ / median‖G‖, for a wanted ψ of {asked.psi:g}
prompts = [lm.prompt({asked.prompt!r})] * {n}
plain = generate.sample(lm.model, prompts, {asked.n_tokens}, seed={asked.seed})
with watermarked(lm.model, wm, key):
    marked = generate.sample(lm.model, prompts, {asked.n_tokens}, seed={asked.seed})
scores = score.score(lm.model, 2 * prompts, plain + marked, wm, [key])  # the plain texts first
print(lm.decode(marked[0]))
print(scores[["text", "psi", "p_value", "n_tokens"]])
"""


def testing(verdict: Verdict, model: str, key: str) -> str:
    """The lines behind a verdict; ``key`` is how code gets the key."""
    return _lines(verdict, model, key)


def editing(result: Edited, model: str, key: str) -> str:
    """The lines behind the test of an edited text."""
    change = (
        f"_, [text] = corrupt.named(lm, [{result.how!r}])[{result.how!r}]([[]], [text],"
        f" {result.share!r}, {EDIT_SEED})\n"
    )
    return _lines(result.before, model, key, "corrupt, ", change)


def _lines(verdict: Verdict, model: str, key: str, needed: str = "", change: str = "") -> str:
    prompt = f"lm.prompt({verdict.prompt!r})" if verdict.prompt.strip() else "[]  # unknown"
    return f"""from gaussmark_lib import {needed}models, tracing
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tracing.windows import windows

lm = models.load({model!r})
key = {key}
wm = Watermark({verdict.weight!r}, 1.0)  # σ cancels in ψ
prompt = {prompt}
text = lm.encode({verdict.text!r})
{change}scores = tracing.author(lm.model, *windows(lm.model, prompt, text), wm, [key])
print(scores[["psi", "p_value", "n_tokens"]])
"""


def preset(question: Question, model: str, key_seed: int | None) -> str:
    """The settings as parameters of notebook 11, in YAML; without the seed of a key that is
    secret.
    """
    key = {} if key_seed is None else {"key_seed": key_seed}
    values = {"model": model, **asdict(question), **key}
    lines = (f"{name}: {json.dumps(v, ensure_ascii=False)}\n" for name, v in values.items())
    return (
        "# Notebook 11 with the panel's settings: gaussmark run 11 -f this_file, or papermill ..."
        " -f this_file\n" + "".join(lines)
    )

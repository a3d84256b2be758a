"""What the panel did, as the library's lines: runnable as they are, and without a key's secret."""

from gaussmark_lib.experiments.playground import EDIT_SEED, Comparison, Tested

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


def of_test(result: Tested, model: str, key: str, how: str = "", share: float = 0.0) -> str:
    """The lines behind a test, or behind that of the same text after an edit."""
    prompt = f"lm.prompt({result.prompt!r})" if result.prompt.strip() else "[]  # unknown"
    edit = (
        f"_, [ids] = corrupt.named(lm, [{how!r}])[{how!r}]([[]], [lm.encode(text)], {share!r},"
        f" {EDIT_SEED})\ntext = lm.decode(ids)\n"
        if how
        else ""
    )
    return f"""from gaussmark_lib import {"corrupt, " if how else ""}models, tracing
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tracing.authors import windows

lm = models.load({model!r})
key = {key}
wm = Watermark({result.question.weight!r}, 1.0)  # σ cancels in ψ
prompt = {prompt}
text = {result.text!r}
{edit}pairs = windows(lm.model, prompt, lm.encode(text))
scores = tracing.author(lm.model, *pairs, wm, [key])
print(scores[["psi", "p_value", "n_tokens"]])
"""

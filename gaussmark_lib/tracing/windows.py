"""A text that is longer than the model's context, in windows that fit.

    log p(y | x) ≈ Σ_w log p(y_w | what stands before it, as far as it fits),    ψ = ⟨ξ, Σ_w G_w⟩ /
    (σ‖Σ_w G_w‖)

Each token is scored once. Which tokens stand before it changes the power only: Σ_w G_w does not
depend on the key, so ψ is N(0, 1) as for one text (``tracing.authors``).
"""

from transformers import PreTrainedModel

from gaussmark_lib import tokens
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.tokens import Ids

# a further window begins with the last context/4 tokens before it, which are not scored again
BEFORE = 4


def windows(
    model: PreTrainedModel, prompt: Ids, response: Ids
) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and responses for ``tracing.author``: together the whole response, in one window
    where the context has room for it.

    Raises:
        InvalidTextError: no token to score, ids that the model does not have, or a prompt that
            leaves no room for a token.
    """
    before = tokens.checked_prompt(model, prompt, "the prompt")
    rest = tokens.checked(model, response, "the text")
    if not rest:
        raise InvalidTextError("the text: expected at least one token to score, got none")
    tokens.check_fits(model, len(before), 1, "the prompt and a token of the text")
    context = tokens.context(model) or len(before) + len(rest)
    prompts, responses = [], []
    while rest:
        n = context - len(before)
        prompts.append(before)
        responses.append(rest[:n])
        before, rest = (before + rest[:n])[-max(1, context // BEFORE) :], rest[n:]
    return prompts, responses

"""llama.cpp's own server in this process: the extra ``engine``. It knows no watermarks."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gaussmark_lib.errors import GaussMarkError

CONTEXT = 512  # tokens of a question and its answer
# a draw from the model's whole distribution, of which the engine's defaults cut off the tail
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def is_installed() -> bool:
    """Return whether the extra ``engine`` is installed."""
    return find_spec("xllamacpp") is not None


def serve(path: Path, *, q8_cache: bool = False, draft: Path | None = None) -> Any:
    """Start a server of a GGUF file that answers one question at a time; it ends when nothing
    refers to it.

    Args:
        path: the file.
        q8_cache: whether keys and values of earlier tokens are kept in 8 bits.
        draft: the file of a model that proposes tokens (speculative decoding).

    Raises:
        GaussMarkError: the extra ``engine`` is not installed, or llama.cpp cannot serve the file.
    """
    if not is_installed():
        raise GaussMarkError(
            "expected llama.cpp, which serves GGUF files, found none; `make .venv/.extra-engine` or"
            " `pip install gaussmark[engine]` installs it"
        )
    import xllamacpp as engine

    params = engine.CommonParams()
    params.model.path = str(path)
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.warmup = False
    params.verbosity = 0
    threads = [params.cpuparams, params.cpuparams_batch]
    if q8_cache:
        params.cache_type_k = engine.ggml_type.GGML_TYPE_Q8_0
        params.cache_type_v = engine.ggml_type.GGML_TYPE_Q8_0
    if draft:
        types = engine.common_speculative_type
        speculative = params.speculative
        speculative.types = [types.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculative.draft.mparams.path = str(draft)
        threads += [speculative.draft.cpuparams, speculative.draft.cpuparams_batch]
    for cpu in threads:
        cpu.n_threads = int(os.environ.get("OMP_NUM_THREADS", 1))
    try:
        return engine.Server(params)
    except RuntimeError as error:
        raise GaussMarkError(f"llama.cpp cannot serve {path}: {error}") from None


def answers(
    server: Any,
    questions: Sequence[str],
    n_tokens: int,
    first_seed: int,
    sampling: Mapping[str, float | bool],
    *,
    is_chat: bool = True,
) -> list[dict]:
    """Return the server's response to each question, in order, with its timings.

    Args:
        n_tokens: the most tokens of an answer.
        first_seed: the seed of the first answer; each next answer has the next seed.
        sampling: the settings of sampling in a request, by llama.cpp's names.
        is_chat: whether a question is the user's turn of a chat; if not, the model continues it.
    """
    responses = []
    for number, question in enumerate(questions):
        request = {"max_tokens": n_tokens, "seed": first_seed + number, **sampling}
        if is_chat:
            request["messages"] = [{"role": "user", "content": question}]
            responses.append(server.handle_chat_completions(request))
        else:
            request["prompt"] = question
            responses.append(server.handle_completions(request))
    return responses


def text(response: dict) -> str:
    """Return the characters of an answer; raise GaussMarkError if the server refused the question.

    >>> text({"choices": [{"message": {"content": "Good morning."}}]})
    'Good morning.'
    """
    if "choices" not in response:
        raise GaussMarkError(f"llama.cpp gave no answer: {response.get('error', response)}")
    [choice] = response["choices"]
    if "message" in choice:  # the answer in a chat
        return choice["message"]["content"]
    return choice["text"]

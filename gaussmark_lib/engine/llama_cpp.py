"""llama.cpp's own server in this process: the extra ``engine``. It knows nothing of watermarks."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gaussmark_lib.errors import GaussMarkError

CONTEXT = 512  # tokens of a question and its answer
# a draw from the model's own distribution; the engine's defaults cut it off
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def is_installed() -> bool:
    """Whether the extra ``engine`` is there."""
    return find_spec("xllamacpp") is not None


def serve(
    path: Path, *, q8_cache: bool = False, draft: Path | None = None, parallel: int = 1
) -> Any:
    """Start a server of a GGUF file; it ends when nothing refers to it.

    Args:
        path: the file.
        q8_cache: whether keys and values of earlier tokens are kept in 8 bits.
        draft: the file of a model that proposes tokens (speculative decoding).
        parallel: how many questions are answered at a time.

    Raises:
        GaussMarkError: without the extra ``engine``, or for a file that llama.cpp cannot serve.
    """
    if not is_installed():
        raise GaussMarkError(
            "expected llama.cpp, which serves GGUF files, found none; `make .venv/.extra-engine` or"
            " `pip install gaussmark[engine]` installs it"
        )
    import xllamacpp as engine

    params = engine.CommonParams()
    params.model.path = str(path)
    params.n_ctx = parallel * CONTEXT
    params.n_parallel = parallel
    params.n_gpu_layers = 0
    params.warmup = False
    params.verbosity = 0
    threads = [params.cpuparams, params.cpuparams_batch]
    if q8_cache:
        params.cache_type_k = engine.ggml_type.GGML_TYPE_Q8_0
        params.cache_type_v = engine.ggml_type.GGML_TYPE_Q8_0
    if draft:
        simple = engine.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
        params.speculative.types = [simple]
        params.speculative.draft.mparams.path = str(draft)
        threads += [params.speculative.draft.cpuparams, params.speculative.draft.cpuparams_batch]
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
    parallel: int = 1,
) -> list[dict]:
    """What the server says to each question: its whole response, with its timings.

    Args:
        n_tokens: the most tokens of an answer.
        first_seed: of the first answer; the next one has the next seed.
        sampling: what a request says of sampling, by llama.cpp's names.
        is_chat: whether a question is the user's turn of a chat; if not, the model goes on from it.
    """

    def ask(number: int) -> dict:
        request = {"max_tokens": n_tokens, "seed": first_seed + number, **sampling}
        if is_chat:
            request["messages"] = [{"role": "user", "content": questions[number]}]
            return server.handle_chat_completions(request)
        request["prompt"] = questions[number]
        return server.handle_completions(request)

    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(ask, range(len(questions))))


def text(response: dict) -> str:
    """The characters of an answer; GaussMarkError where the server refused the question."""
    if "choices" not in response:
        raise GaussMarkError(f"llama.cpp gave no answer: {response.get('error', response)}")
    [choice] = response["choices"]
    return choice["message"]["content"] if "message" in choice else choice["text"]

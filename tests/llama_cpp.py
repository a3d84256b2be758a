"""llama.cpp's own server in this process (the extra ``engine``), asked as a chat."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PARALLEL = 4
CONTEXT = 512  # tokens of a question and its answer


def serve(path: Path, *, q8_cache: bool = False, draft: Path | None = None) -> Any:
    """A server of a GGUF file. ``draft``: the file of a model that proposes tokens."""
    import xllamacpp as engine

    params = engine.CommonParams()
    params.model.path = str(path)
    params.n_ctx = PARALLEL * CONTEXT
    params.n_parallel = PARALLEL
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
    return engine.Server(params)


def answers(
    server: Any, questions: list[str], n_tokens: int, first_seed: int, sampling: dict[str, float]
) -> list[dict]:
    """What the server says to each question: its whole answer, with its timings."""

    def ask(number: int) -> dict:
        request = {
            "messages": [{"role": "user", "content": questions[number]}],
            "max_tokens": n_tokens,
            "seed": first_seed + number,
            **sampling,
        }
        return server.handle_chat_completions(request)

    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(ask, range(len(questions))))


def text(answer: dict) -> str:
    return answer["choices"][0]["message"]["content"]

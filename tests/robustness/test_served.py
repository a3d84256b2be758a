"""A marked export behind transformers' own server, asked over HTTP: its texts carry the mark."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from gaussmark_lib import models, perturb, score
from gaussmark_lib.perturb import Key, Watermark

pytestmark = pytest.mark.slow
THINGS = "matrix", "file", "model", "list", "thread", "socket"
PROMPTS = [f"{start} the {thing}" for start in ("Returns", "Note that") for thing in THINGS]
SERVER = "from transformers.cli.transformers import main; main()"


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A function from a prompt and a seed to the server's text; and the model, mark and key."""
    for package in ("fastapi", "uvicorn"):
        pytest.importorskip(package, reason=f"`transformers serve` needs {package}")
    lm, key = models.load("doclm"), Key.from_seed(7)
    wm = Watermark(models.default_weight(lm.model), 0.15)
    folder = tmp_path_factory.mktemp("served") / "marked"
    perturb.export(lm.model, wm, key, folder, lm.tokenizer)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    words = [sys.executable, "-c", SERVER, "serve", str(folder), "--port", port, "--device", "cpu"]
    server = subprocess.Popen(words, env=os.environ | {"HF_HUB_OFFLINE": "1"})

    def text(prompt: str, seed: int) -> str:
        sampling = json.dumps({"do_sample": True, "top_k": 0})
        body = {"model": str(folder), "prompt": prompt, "max_tokens": 80, "seed": seed}
        request = urllib.request.Request(
            f"http://localhost:{port}/v1/completions",
            json.dumps(body | {"temperature": 1.0, "generation_config": sampling}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["choices"][0]["text"]

    try:
        for _ in range(120):
            assert server.poll() is None
            try:
                text("The", 0)
                break
            except urllib.error.URLError:
                time.sleep(1)
        yield text, lm, wm, key
    finally:
        server.kill()
        server.wait()


def test_texts_from_a_server_carry_the_mark(asked):
    text, lm, wm, key = asked
    responses = [lm.encode(text(prompt, i)) for i, prompt in enumerate(PROMPTS)]
    ids = [lm.encode(prompt) for prompt in PROMPTS]
    found = score.score(lm.model, ids, responses, wm, [key, Key.from_seed(8)])
    own, wrong = found["psi"].to_numpy().reshape(len(ids), 2).T
    assert own.mean() > 1.5
    assert abs(wrong.mean()) < 4 / np.sqrt(len(ids))

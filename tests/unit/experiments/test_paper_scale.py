"""Memory is bounded by design, on matrices of 58.7 million numbers: four keys' noises are held at a
time, so 16 keys take what 64 take.
"""

import json
import subprocess
import sys

import psutil
import pytest
from scipy.stats import kstest

MOST = 8  # GiB

IS_FULL = psutil.virtual_memory().available < (MOST + 1) * 2**30
needs_memory = pytest.mark.skipif(IS_FULL, reason=f"needs {MOST + 1} GiB of free memory")
pytestmark = [pytest.mark.slow, pytest.mark.spread, needs_memory]


def measured(*words: str) -> dict:
    command = [sys.executable, "-m", "gaussmark_experiments.paper_scale", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=True)
    return json.loads(done.stdout)


def test_many_keys_on_wide_matrices_fit():
    found = measured("--texts", "2")
    assert len(found["psi"]) == 16 * 2
    assert found["GiB of the model"] < found["GiB at the peak"] < MOST
    assert kstest(found["psi"][:16], "norm").pvalue > 1e-4, "of one text, over keys"


def test_a_stream_on_a_wide_matrix_keeps_its_texts_by_their_terms():
    """Eight whole directions would take 1.75 GiB beside what two noises and a pass need, 1.2."""
    found = measured("--stream", "--keys", "2", "--texts", "8")
    assert found["kept"] == 8
    assert found["GiB at the peak"] - found["GiB of the model"] < 1.75
    assert found["|Δψ|"] < 1e-3, "score sums ψ in float32"
    assert kstest(found["innovation"], "norm").pvalue > 1e-4

"""Memory is bounded by design: 64 keys and 8 texts on matrices of 58.7 million numbers, with noises of 15 GiB that are never held at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from scipy.stats import kstest

from gaussmark_lib import paths

MOST = 8  # GiB


@pytest.mark.slow
@pytest.mark.spread
@pytest.mark.skipif(psutil.virtual_memory().available < (MOST + 1) * 2**30, reason=f"needs {MOST + 1} GiB of free memory")
def test_many_keys_on_wide_matrices_fit():
    command = [sys.executable, Path(__file__).with_name("paper_scale.py")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(paths.ROOT)}, capture_output=True, text=True, timeout=1500, check=True)
    found = json.loads(done.stdout)
    assert len(found["psi"]) == 64 * 8
    assert found["GiB of the model"] < found["GiB at the peak"] < MOST
    assert kstest(found["psi"][::8], "norm").pvalue > 1e-4, "of one text, over keys"

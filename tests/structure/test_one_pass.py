"""How much of the core one pass goes through: prompt → watermarked sample → score → p."""

import sys
from collections import defaultdict
from pathlib import Path

import pytest
import tiny_lm

import gaussmark_lib
from gaussmark_lib import generate, perturb, score

CORE = Path(gaussmark_lib.__file__).parent
MOST_FILES, MOST_FUNCTIONS = 9, 35  # of the flat core; ``engine`` stands behind it


@pytest.fixture(scope="module")
def called() -> dict[str, set[str]]:
    """The functions of each flat file that one pass calls."""
    lm, found = tiny_lm.build(), defaultdict(set)
    wm, key = perturb.Watermark(tiny_lm.WEIGHT, 0.05), perturb.Key.from_seed(1)

    def note(frame, event, _):
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        is_named = not name.rsplit(".", 1)[-1].startswith("<")  # a comprehension, a lambda
        if event == "call" and path.parent == CORE and is_named:
            found[path.name].add(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        with perturb.watermarked(lm.model, wm, key) as model:
            responses = generate.sample(model, [[5, 6, 7]], 4)
        score.score(lm.model, [[5, 6, 7]], responses, wm, [key])
    finally:
        sys.setprofile(before)
    return found


def test_it_is_read_in_an_evening(called):
    n_functions = sum(map(len, called.values()))
    assert len(called) <= MOST_FILES
    assert n_functions <= MOST_FUNCTIONS, f"{n_functions}: {dict(called)}"


def test_psi_is_one_of_them(called):
    assert "statistics" in called["score.py"]
    assert {"drawn", "watermarked"} <= called["perturb.py"]

"""How much of the core one pass goes through: prompt → watermarked sample → score → p."""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import tiny_lm

import gaussmark_lib
from gaussmark_lib import generate, perturb, score

CORE = Path(gaussmark_lib.__file__).parent
MOST_FILES = 9  # of the flat core; ``engine`` stands behind it
MOST_FUNCTIONS = 30  # of these, without the checks of ``errors``, which every entry point calls
MOST_VISITS = 2  # of one call to a file, from other files
CHECKS = "errors.py"


class Trace:
    """The functions of the flat core that a call goes through, and its ways into each file."""

    def __init__(self):
        self.functions: dict[str, Counter[str]] = defaultdict(Counter)
        self.visits: Counter[str] = Counter()
        self._seen: set[FrameType] = set()  # a generator's frame is entered many times

    def of(self, call: Callable):
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            return call()
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, _) -> None:
        name = frame.f_code.co_qualname
        is_named = not name.rsplit(".", 1)[-1].startswith("<")  # a comprehension, a lambda
        if event != "call" or not is_named or not is_core(frame) or frame in self._seen:
            return
        self._seen.add(frame)
        file = Path(frame.f_code.co_filename).name
        self.functions[file][name] += 1
        caller = frame.f_back
        while caller and not is_core(caller):  # through the engine and torch
            caller = caller.f_back
        if caller is None or Path(caller.f_code.co_filename).name != file:
            self.visits[file] += 1


def is_core(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).parent == CORE


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    """Of each of the three calls."""
    lm = tiny_lm.build()
    wm, key = perturb.Watermark(tiny_lm.WEIGHT, 0.05), perturb.Key.from_seed(1)
    prompts = [[5, 6, 7]]
    marking, sampling, scoring = Trace(), Trace(), Trace()
    mark = perturb.watermarked(lm.model, wm, key)
    marking.of(mark.__enter__)
    responses = sampling.of(lambda: generate.sample(lm.model, prompts, 4))
    marking.of(lambda: mark.__exit__(None, None, None))
    scoring.of(lambda: score.score(lm.model, prompts, responses, wm, [key]))
    return {"mark": marking, "sample": sampling, "score": scoring}


@pytest.fixture(scope="module")
def called(traces) -> dict[str, set[str]]:
    """The functions of each file that the whole pass calls."""
    functions = defaultdict(set)
    for trace in traces.values():
        for file, names in trace.functions.items():
            functions[file] |= names.keys()
    return functions


def test_it_is_read_in_an_evening(called):
    n_functions = sum(len(names) for file, names in called.items() if file != CHECKS)
    assert len(called) <= MOST_FILES
    assert n_functions <= MOST_FUNCTIONS, f"{n_functions}: {dict(called)}"


@pytest.mark.parametrize("call", ["mark", "sample", "score"])
def test_no_file_is_visited_again_and_again(traces, call):
    visits = {file: n for file, n in traces[call].visits.items() if file != CHECKS}
    assert visits
    assert max(visits.values()) <= MOST_VISITS, visits


@pytest.mark.parametrize("call", ["mark", "sample", "score"])
def test_a_model_is_validated_once(traces, call):
    assert traces[call].functions["tokens.py"]["Reader.__init__"] == 1


def test_psi_is_one_of_them(called):
    assert "statistics" in called["score.py"]
    assert {"drawn", "watermarked"} <= called["perturb.py"]

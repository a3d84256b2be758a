"""The scheme of CONTRIBUTING's recipe: ten lines in a module outside the library, which audit,
power and notebook 08 accept by name.
"""

import json
import re
import sys
from functools import partial

import numpy as np
import pytest
import tiny_lm
import tiny_models
from command_lines import answer, rows
from scipy.stats import binom

from gaussmark_experiments import kgw_baseline, robustness
from gaussmark_lib import models, perturb
from gaussmark_lib import scheme as scheme_module
from gaussmark_lib.beyond import schemes
from gaussmark_lib.errors import InvalidWatermarkError
from gaussmark_lib.files import ROOT
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import cli
from gaussmark_lib.workbench.pairs import Pairs
from gaussmark_lib.workbench.runs import notebook as notebooks

NAME = "favourites:favourites"
RECIPE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SOURCE = re.search(r"### A scheme.*?```python\n(.*?)```", RECIPE, re.DOTALL).group(1)
LM = tiny_lm.build()
WM = Watermark(tiny_lm.WEIGHT, 0.2)
KEY = Key.from_seed(9)


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder outside the library that Python searches, with the recipe's module in it."""
    (tmp_path / "favourites.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(models, "load", lambda name: LM)
    yield tmp_path
    sys.modules.pop("favourites", None)
    scheme_module.makers.pop("favourites", None)


def test_it_has_at_most_ten_lines_besides_imports_and_docstrings():
    lines = [line.strip() for line in SOURCE.splitlines()]
    code = [line for line in lines if line and not line.startswith(('"""', "import ", "from "))]
    assert len(code) <= 10, code


def test_it_is_tested_as_a_loop_over_the_tokens_says(outside):
    [(name, scheme)] = schemes.named(WM, KEY, [NAME]).items()
    assert (name, scheme.name, scheme.key) == ("favourites", "favourites", KEY)
    assert scheme != scheme.rekeyed(3)
    assert scheme == schemes.named(WM, KEY, [NAME])["favourites"], "a module registers once"
    texts = [[5, 6, 6, 7, 8], [9, 10, 11]]
    table = scheme.score(LM.model, [[], []], texts)
    is_favourite = scheme.favourites(LM.model)
    for row, ids in zip(table.itertuples(), texts, strict=True):
        hits = sum(bool(is_favourite[token]) for token in set(ids))
        p = sum(binom.pmf(k, len(set(ids)), 0.5) for k in range(hits, len(set(ids)) + 1))
        assert row.p_value == pytest.approx(p)
        assert row.log10_p == pytest.approx(np.log10(p)) == pytest.approx(-row.statistic)
        assert row.n_tokens == len(ids)


def test_audit_and_power_accept_it(outside, tmp_path, capsys):
    key_file = perturb.bind(LM.model, WM, KEY).save(tmp_path / "key")
    words = ["--key", str(key_file), "--text", "docs", "--texts", "6", "--tokens", "12", "--scheme"]
    card = tmp_path / "card"
    code, _, err = answer(capsys, "audit", str(card), *words, NAME)
    assert code == 0, err
    content = json.loads(card.with_suffix(".json").read_text())
    assert content["scheme"] == "favourites"
    assert 0 <= content["kinds"]["docs"]["this key"]["value"] <= 1
    code, table, _ = rows(capsys, "power", *words, NAME)
    assert (code, len(table)) == (0, 9)
    assert table[0]["value"] < table[2]["value"]
    code, _, err = answer(capsys, "power", *words, "no_such_module:x")
    assert (code, "PYTHONPATH" in " ".join(err.split())) == (cli.REFUSED, True)


def test_notebook_08_measures_it_beside_the_five(outside):
    tried = kgw_baseline.contenders(WM, KEY, context=2, depth=2, more=[NAME])
    assert [*tried][5:] == ["favourites"]
    assert "favourites" in kgw_baseline.tests_of(tried)
    prompts = tiny_models.random_ids(np.random.default_rng(0), *[5] * 6)
    pairs = Pairs(prompts, [Key.from_seed(i) for i in range(6)])
    only = {"favourites": tried["favourites"]}
    written = robustness.texts_by_scheme(LM, only, pairs, 40, seed=1)
    table = kgw_baseline.by_length(LM, only, pairs, written, [40])
    assert table["p_value"].median() < 0.05, "its texts are marked"
    wrong = only["favourites"].rekeyed(77).score(LM.model, prompts, written["favourites"])
    assert wrong["p_value"].median() > 0.05, "and not by another key"


def test_a_run_is_another_one_if_the_module_changes(outside):
    values = {"more_schemes": ["KGW-1", NAME]}
    folder = ROOT / "notebooks"
    before = notebooks.inputs_of(values, folder)
    assert before.keys() == {"favourites"}
    (outside / "favourites.py").write_text(SOURCE.replace("2.0", "3.0"), encoding="utf-8")
    assert notebooks.inputs_of(values, folder) != before
    assert notebooks.inputs_of({"more_schemes": ["no_such.module:x"]}, folder) == {}


@pytest.mark.parametrize("source", ["1 +", "raise SystemError('late')", "import no_such_module"])
def test_a_module_that_cannot_be_imported_is_named(outside, source):
    (outside / "favourites.py").write_text(source, encoding="utf-8")
    with pytest.raises(InvalidWatermarkError, match=r"a module 'favourites' that registers"):
        schemes.named(WM, KEY, [NAME])


def test_a_module_without_the_scheme_is_refused(outside):
    with pytest.raises(InvalidWatermarkError, match="no scheme is called 'favorites'"):
        schemes.named(WM, KEY, ["favourites:favorites"])


def test_a_class_with_a_name_keeps_it():
    named = type("Named", (scheme_module.SimpleScheme,), {"name": "mine"})
    try:
        assert scheme_module.register("other")(named).name == "mine"
        again = type("Named", (scheme_module.SimpleScheme,), {"name": "mine"})  # loaded again
        assert scheme_module.register("other")(again) is again
        child = type("Child", (named,), {})
        assert scheme_module.register("child")(child).name == "child", "not the parent's name"
        for maker in (child, partial(named)):
            with pytest.raises(InvalidWatermarkError, match="'other' is the name of another"):
                scheme_module.register("other")(maker)
    finally:
        for name in ("other", "child"):
            scheme_module.makers.pop(name, None)

"""The README's picture shows the texts of a record, with their ψ and p."""

import json

import pandas as pd
import pytest
import tiny_lm
from matplotlib import image

from gaussmark_experiments import first_glance
from gaussmark_lib import models
from gaussmark_lib.workbench.runs import folder

PSIS = [4.0, 1.0, 2.0, 3.0]


@pytest.fixture
def record(tmp_path):
    lm = tiny_lm.build()
    texts = {
        "prompt": [lm.encode(f"Prompt {i}") for i in range(4)],
        "plain": [lm.encode(f"plain $x$ {i}") for i in range(4)],
        "watermarked": [lm.encode(f"marked {i}") for i in range(4)],
        "psi_plain": [0.1, 0.2, 0.3, 0.4],
        "psi_watermarked": PSIS,
    }
    pd.DataFrame(texts).to_parquet(tmp_path / "texts.parquet")
    headline = {"sentence": "", "value": 0.75, "low": 0.2, "high": 0.99, "n": 4, "unit": ""}
    contents = {
        "params": {"model": "tiny", "level": 0.05},
        "results": {"headline": headline},
        "status": {"status": "complete", "finished": "", "seconds": 1},
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_the_picture_has_the_pair_with_the_median_psi(record, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(models, "load", lambda _: tiny_lm.build())
    monkeypatch.setattr(first_glance, "PICTURE", tmp_path / "picture.png")
    first_glance.main(str(record))
    assert image.imread(tmp_path / "picture.png").shape[1] == 960
    said = capsys.readouterr().out
    assert said.startswith("*tiny, 11 tokens each")
    assert "75% (20% to 99%), n = 4.*" in said
    pair = first_glance.typical(pd.read_parquet(record / "texts.parquet"))
    assert pair["psi_watermarked"] == 2.0, "of two in the middle, the smaller"
    figure = first_glance.draw(tiny_lm.build(), pair)
    plain, marked = figure.axes
    assert plain.get_title("left") == "plain: ψ = 0.30, p = 0.382"
    assert marked.get_title("left") == "watermarked: ψ = 2.00, p = 0.0228"
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["plain $x$ 2", "marked 2"]
    assert folder.load(record).params["model"] == "tiny"


def test_a_long_text_is_shortened_after_a_word():
    words = first_glance.shortened("word \n" * 1000)
    assert words.endswith("word …")
    assert max(map(len, words.splitlines())) <= first_glance.WIDTH
    assert len(words) <= first_glance.N_CHARACTERS

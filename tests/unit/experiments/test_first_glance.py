"""The README's picture shows the answers of a record, with their ψ and p."""

import pandas as pd
import pytest
import tiny_lm
from matplotlib import image

from gaussmark_experiments import first_glance
from gaussmark_lib import files, models

PSIS = [4.0, 1.0, 2.0, 3.0]
README = (files.ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def pairs():
    lm = tiny_lm.build()
    answers = {
        "prompt": [lm.encode(f"Prompt {i}") for i in range(4)],
        "plain": [lm.encode(f"plain $x$ {i}") for i in range(4)],
        "watermarked": [lm.encode(f"marked {i}") for i in range(4)],
        "psi_plain": [0.1, 0.2, 0.3, 0.4],
        "psi_watermarked": PSIS,
    }
    return pd.DataFrame(answers)


def test_the_picture_has_the_pair_with_the_median_psi(pairs):
    pair = first_glance.typical(pairs)
    assert pair["psi_watermarked"] == 2.0, "of two in the middle, the smaller"
    figure = first_glance.draw(tiny_lm.build(), "Why?", pair)
    plain, marked = figure.axes
    assert plain.get_title("left") == "plain: ψ = 0.30, p = 0.382"
    assert marked.get_title("left") == "watermarked: ψ = 2.00, p = 0.0228"
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["plain $x$ 2", "marked 2"]


def test_a_long_text_is_shortened_after_a_word():
    words = first_glance.shortened("word \n" * 1000)
    assert words.endswith("word …")
    assert max(map(len, words.splitlines())) <= first_glance.WIDTH
    assert len(words) <= first_glance.N_CHARACTERS


def test_it_writes_the_pairs_the_picture_and_the_caption(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(models, "load", lambda _: tiny_lm.build())
    monkeypatch.setattr(first_glance, "PICTURE", tmp_path / "picture.png")
    monkeypatch.setattr(first_glance, "PAIRS", tmp_path / "pairs.parquet")
    monkeypatch.setattr(first_glance, "MOST_TOKENS", 12)
    monkeypatch.setattr(first_glance, "QUESTIONS", ["Why?", "How?", "When?"])
    first_glance.main()
    assert image.imread(tmp_path / "picture.png").shape[1] == 960
    pairs = pd.read_parquet(tmp_path / "pairs.parquet")
    assert len(pairs) == 3
    assert (pairs["psi_plain"] != pairs["psi_watermarked"]).all()
    assert capsys.readouterr().out.startswith("*SmolLM2 answers 3 questions")


def test_the_readme_has_the_caption_that_the_record_makes():
    assert first_glance.caption(pd.read_parquet(first_glance.PAIRS)) in README
    assert first_glance.PICTURE.relative_to(files.ROOT).as_posix() in README

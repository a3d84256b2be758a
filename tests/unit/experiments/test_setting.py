import pytest
import tiny_lm

from gaussmark_lib import generate, models, score, stats, texts
from gaussmark_lib.errors import CorpusError, InvalidTextError, InvalidWatermarkError
from gaussmark_lib.experiments import setting


@pytest.fixture(scope="module")
def lm():
    return tiny_lm.build()


@pytest.fixture(scope="module")
def jsonl(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "mine.jsonl"
    path.write_text(
        "".join(
            f'{{"text": "the {i} first words of a line that goes on and on and on and on for a'
            ' while"}\n'
            for i in range(20)
        )
    )
    return str(path)


def test_what_is_named_is_taken(lm, jsonl):
    wm = setting.watermark(lm, jsonl, weight=tiny_lm.WEIGHT, sigma=0.3, rank_dropped=2)
    assert (wm.weight, wm.sigma, wm.rank_dropped) == (tiny_lm.WEIGHT, 0.3, 2)


def test_what_is_not_named_is_chosen_for_the_model(lm, jsonl):
    wm = setting.watermark(lm, jsonl, psi=2.0, n_tokens=12, n_prompt=4, seed=3)
    prompts = texts.prompts(lm, jsonl, setting.N_TEXTS, 4)
    plain = generate.sample(lm.model, prompts, 12, seed=3)
    norms = [gradient.norm for gradient in score.gradients(lm.model, prompts, plain, wm)]
    assert wm.weight == models.default_weight(lm.model)
    assert abs(stats.sigma_for_psi(norms, 2.0) / wm.sigma - 1) < 1e-6
    assert tiny_lm.WEIGHT.split(".")[0] in setting.said(lm, wm)


def test_either_sigma_or_psi(lm, jsonl):
    with pytest.raises(
        InvalidWatermarkError, match="psi, the wanted mean, where no sigma is given"
    ):
        setting.watermark(lm, jsonl)


def test_short_lines_are_joined(lm, tmp_path):
    path = tmp_path / "short.jsonl"
    path.write_text("".join(f'{{"text": "line {i} is short"}}\n' for i in range(60)))
    with pytest.raises(CorpusError):
        texts.beginnings(lm, str(path), 3, 40)
    found = setting.passages(lm, str(path), 3, 40)
    assert list(map(len, found)) == [40] * 3
    whole = lm.encode("\n\n".join(f"line {i} is short" for i in range(60)))
    assert [*found[0], *found[1], *found[2]] == whole[:120]
    assert setting.prompts(lm, str(path), 3, 40) == [lm.prompt(lm.decode(ids)) for ids in found]
    assert len(setting.pages(str(path), 50)) == 50
    assert len(setting.pages(str(path), 500)) == 60
    with pytest.raises(CorpusError):
        setting.passages(lm, str(path), 1_000, 40)


def test_long_texts_are_taken_as_they_are(lm, jsonl):
    assert setting.passages(lm, jsonl, 4, 8) == texts.beginnings(lm, jsonl, 4, 8)


def test_texts_fit_the_context_with_what_edits_add(lm):
    context = lm.model.config.max_position_embeddings
    prompts = [[5] * 4, [5] * 9]
    assert setting.fitting(lm, prompts, 10) == 10
    n = setting.fitting(lm, prompts, 10 * context, growth=1.5)
    assert 1.5 * (n + 9) <= context < 1.5 * (n + 9 + 3)
    with pytest.raises(InvalidTextError, match="take shorter prompts"):
        setting.fitting(lm, [[5] * context], 10)

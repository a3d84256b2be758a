import pytest
import tiny_lm

from gaussmark_lib import generate, models, score, stats, texts
from gaussmark_lib.errors import InvalidWatermarkError
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

"""Translation there and back: no sentence is cut or lost on the way through a translator.
Resampling: what is redrawn is the model's, and the rest stays.
"""

import re

import numpy as np
import pytest
import tiny_lm
import tiny_models
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, processors
from tokenizers import models as tokenizer_models
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from gaussmark_lib import corrupt, generate
from gaussmark_lib.errors import GaussMarkError, InvalidModelError, InvalidTextError
from gaussmark_lib.workbench import rewrite
from gaussmark_lib.workbench.rewrite import apertium, marian

PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 5, 7, 4)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 20, 31, 7)
TEXT = "The first sentence. Is this one?  Yes!\n\nAnother paragraph (in 3.5 words). And its end"


def tiny_marian(max_length: int = 24, seed: int = 0) -> marian.Marian:
    """A random Marian model over characters, with an end token and, as Marian models have it, no
    start token.
    """
    tokens = ["</s>", "<unk>", "<pad>", *map(chr, range(32, 127))]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(tokenizer_models.BPE(vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 0)]
    )
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, **special
    )
    return marian.Marian(marian_model(len(vocabulary), max_length, seed), fast, "tiny Marian")


def marian_model(n_vocabulary: int, max_length: int, seed: int) -> MarianMTModel:
    each = {"layers": 1, "ffn_dim": 32, "attention_heads": 2}
    sizes = {f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in each.items()}
    ids = {"pad_token_id": 2, "eos_token_id": 0, "forced_eos_token_id": 0}
    ids |= {"decoder_start_token_id": 2, "vocab_size": n_vocabulary}
    config = MarianConfig(d_model=16, max_position_embeddings=max_length, **sizes, **ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MarianMTModel(config).eval()
        for parameter in model.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.generation_config.update(bad_words_ids=[[2]], num_beams=2, max_length=max_length)
    return model


@pytest.fixture
def seen(monkeypatch) -> list[list[str]]:
    """What reaches the translation model, which answers with the same text in capitals."""
    batches: list[list[str]] = []

    def translated(self, texts):
        batches.append(texts)
        return [text.upper() for text in texts]

    monkeypatch.setattr(marian.Marian, "_translated", translated)
    return batches


def test_no_word_is_lost_and_white_space_stays(seen):
    assert tiny_marian()(TEXT, batch_size=3) == TEXT.upper()
    assert all(len(batch) <= 3 for batch in seen)
    assert sum(len(piece.split()) for batch in seen for piece in batch) == len(TEXT.split())


@given(
    st.one_of(
        st.text(alphabet="abc .!\n", max_size=120),
        st.integers(20, 60).map(lambda n: "ab " * (n // 3) + "c" * (n % 3)),
    )
)
@example("a" * 24)  # with its end token one too many
def test_no_piece_is_longer_than_the_translator_can_read(text):
    translator = tiny_marian()
    pieces = translator.pieces(text)
    assert "".join(pieces) == text
    assert all(len(translator.tokenizer(piece.strip()).input_ids) <= 24 for piece in pieces)


def test_translation_of_a_text_is_that_of_its_sentences():
    """Through the model itself: batched with others and padded, a sentence is translated as it is
    alone.
    """
    translator = tiny_marian()
    pieces = [piece.strip() for piece in translator.pieces(TEXT)]
    alone = [translator(piece) for piece in pieces]
    together = translator(TEXT)
    assert re.sub(r"\s+", "", together) == re.sub(r"\s+", "", "".join(alone))
    assert together != TEXT
    assert translator("") == ""
    assert translator(" \n ") == " \n "


def test_a_round_trip_goes_through_both_models_and_adds_no_start_token():
    lm, there, back = tiny_lm.build(), tiny_marian(seed=1), tiny_marian(seed=2)
    ids = lm.encode("Some text. More of it.")
    responses = [[lm.tokenizer.bos_token_id, *ids], lm.encode("Another.")]
    out = rewrite.round_trip(lm, responses, there, back)
    assert lm.decode(out[0]) == back(there("Some text. More of it."))
    assert lm.decode(out[1]) == back(there("Another."))
    assert not {lm.tokenizer.bos_token_id, lm.tokenizer.eos_token_id} & {*out[0], *out[1]}
    assert out[0] != ids
    change = rewrite.translation(lm, there, back)
    prompts = [[5], [6, 7]]
    assert change(prompts, responses, 0.3, 0) == (prompts, out), "in full at every fraction"
    assert change(prompts, responses, 0.0, 0) == (prompts, responses)


def test_bad_input_is_named(monkeypatch):
    known = r"expected one of en→es, .*, fr→en, got 'en' → 'tlh'"
    with pytest.raises(InvalidModelError, match=known):
        rewrite.translator("en", "tlh")
    name = "Helsinki-NLP/opus-mt-tc-big-en-fr"
    extra = r".*gaussmark\[translation\].*rewrite.resample"
    with pytest.raises(InvalidModelError, match=f"cannot get {name}: {extra}"):
        rewrite.translator("en", "fr")
    monkeypatch.setattr(marian.Marian, "_translated", lambda self, texts: ["" for _ in texts])
    lm = tiny_lm.build()
    with pytest.raises(GaussMarkError, match="got an empty text"):
        rewrite.round_trip(lm, [lm.encode("Text.")], tiny_marian(), tiny_marian())


# --- Apertium ---

ROUND_TRIP = [("en", "es"), ("es", "en")]
needs_apertium = pytest.mark.skipif(
    not apertium.is_installed(),
    reason="needs Debian's packages apertium, apertium-eng-spa, apertium-eng-cat, apertium-eo-en",
)
# What its stream format uses, what it marks unknown words with, and what separates texts in it.
AWKWARD = st.one_of(
    st.sampled_from([*"[]{}^$/\\@<>*#+~=&;_.!?'\"-\x00\r\n\t", "\n\n", "\u2028", "\ufffd", "😀"]),
    st.sampled_from(["The house", "is", "red.", "Xyzzyx", "<b>", "</b>", "[[t:b:1]]", "[]", ".[]"]),
    st.text(max_size=3),
)


SENTENCES = {"en": "The dog is red.", "es": "El perro es rojo."}
SENTENCES |= {"ca": "El gos és vermell.", "eo": "La hundo estas ruĝa."}


@needs_apertium
@pytest.mark.parametrize(("source", "target"), apertium.DIRECTIONS)
def test_apertium_translates(source, target):
    [text] = rewrite.translator(source, target).batch([SENTENCES[source]])
    assert text == SENTENCES[target]


@needs_apertium
@settings(max_examples=2, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.lists(st.lists(AWKWARD, max_size=12).map(" ".join), min_size=60, max_size=90))
@example([*"[]{}^$/\\@<>*#~", "Mr", "Mr.", "etc", "a.[]", "", "end"])
def test_apertium_gives_each_text_its_translation(awkward):
    """In one process: each text has a number of its own, which is not translated."""
    texts = [f"{1000 + i} {text}" for i, text in enumerate(awkward)]
    for source, target in ROUND_TRIP:
        found = rewrite.translator(source, target).batch(texts)
        numbers = [re.findall(r"\b1\d{3}\b", text)[0] for text in found]
        assert numbers == [str(1000 + i) for i in range(len(texts))]


@needs_apertium
def test_a_round_trip_by_apertium_is_readable_and_keeps_the_layout():
    text = "The old house [1] is very big.\n\n  * Nobody xyzzyx lives there: 3 < 4 @home #1.\n"
    there, back = (rewrite.translator(*pair) for pair in ROUND_TRIP)
    spanish, *blank = there.batch([text, "", " \n "])
    assert blank == ["", " \n "]
    assert "casa" in spanish
    [english] = back.batch([spanish])
    assert "house [1]" in english
    assert re.findall(r"\n+", english) == ["\n\n", "\n"]
    for kept in ("  * ", " xyzzyx ", "3 < 4 @house #1."):
        assert kept in english


def test_without_apertium_its_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    packages = "install the Debian packages apertium and apertium-eng-cat"
    with pytest.raises(InvalidModelError, match=f"got no such program; {packages}"):
        rewrite.translator("en", "ca")
    program = tmp_path / "apertium"
    program.write_text("#!/bin/sh\necho eng-spa\n")
    program.chmod(0o755)
    with pytest.raises(InvalidModelError, match=f"got a program without it; {packages}"):
        rewrite.translator("en", "ca")
    program.write_text("#!/bin/sh\necho spa-eng eng-spa\necho broken >&2\n")
    spanish = rewrite.translator("en", "es")
    with pytest.raises(GaussMarkError, match=r"expected 2 texts from apertium eng-spa, .*broken"):
        spanish.batch(["a", "b"])
    assert list(rewrite.round_trips(tiny_lm.build())) == ["round trip by Spanish"]


# --- resampling by the model itself ---


def test_texts_that_fit_alone_fit_together(model):
    """A long prompt with a short text, beside a short prompt with a long one: neither may be as
    long as both longest ones.
    """
    context = model.config.max_position_embeddings
    prompts = tiny_models.random_ids(np.random.default_rng(3), context - 10, 10, 10)
    texts = tiny_models.random_ids(np.random.default_rng(4), 10, context - 20, 10)
    together = rewrite.resample(model, prompts, texts, 0.5, seed=1)
    assert list(map(len, together)) == list(map(len, texts))
    assert together[0] == rewrite.resample(model, prompts[:1], texts[:1], 0.5, seed=1)[0]
    with pytest.raises(InvalidTextError, match="expected at most"):
        rewrite.resample(model, [[], prompts[0]], [[5], texts[0] + [5]], 0.5)


def test_its_random_numbers_wrote_no_text():
    fresh = generate.uniform(3 + rewrite._FRESH, [0], 5)
    assert not (generate.uniform(3, range(300), 5) == fresh).all(-1).any()


@given(st.integers(1, 60), st.floats(0, 1), st.integers(1, 12), st.integers(0, 999))
def test_spans_cover_exactly_the_fraction(n, fraction, span, seed):
    places = rewrite.spans(n, fraction, span, corrupt.generator(seed))
    assert len(places) == round(fraction * n)
    assert set(places) <= set(range(n))
    touched = {place // span for place in places}  # but for the last one, and the one at the end
    assert len(touched) <= -(-len(places) // span) + 1


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_what_is_redrawn_is_the_models_given_all_before_it_and_the_rest_is_kept(model, fraction):
    """Token by token from the model's own probabilities over the rewritten text so far."""
    seed = 5
    out = rewrite.resample(model, PROMPTS, RESPONSES, fraction, span=3, seed=seed)
    for row, (prompt, old, new) in enumerate(zip(PROMPTS, RESPONSES, out, strict=True)):
        [u] = generate.uniform(seed + rewrite._FRESH, [row], 31)
        places = rewrite.spans(len(old), fraction, 3, corrupt.generator(seed, row))
        assert len(new) == len(old)
        for k in range(len(old)):
            if k not in places:
                assert new[k] == old[k]
                continue
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + new[:k]])).logits[0, -1]
            p = logits.double().softmax(-1).cumsum(-1)
            assert p[new[k]] > u[k] - 1e-5
            assert new[k] == 0 or p[new[k] - 1] < u[k] + 1e-5


def test_a_text_does_not_depend_on_those_beside_it(model):
    expected = rewrite.resample(model, PROMPTS, RESPONSES, 0.5, seed=1)
    assert rewrite.resample(model, PROMPTS[:1], RESPONSES[:1], 0.5, seed=1) == expected[:1]
    many = rewrite.resample(model, PROMPTS * 30, RESPONSES * 30, 0.5, seed=1)  # two batches
    assert many[:3] == expected

"""Translation there and back: no sentence is cut or lost on the way through a translator."""

import re

import pytest
import tiny_lm
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, processors
from tokenizers import models as tokenizer_models
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from gaussmark_lib import rewrite
from gaussmark_lib.errors import GaussMarkError, InvalidModelError

TEXT = (
    "The first sentence. Is this the second one?  Yes!\n\nAnother paragraph (in 3.5 words). And"
    " its end"
)


def tiny_marian(max_length: int = 24, seed: int = 0) -> rewrite.Translator:
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
    return rewrite.Translator(marian_model(len(vocabulary), max_length, seed), fast, "tiny Marian")


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
    monkeypatch.setattr(
        rewrite.Translator,
        "_translated",
        lambda self, texts: batches.append(texts) or [text.upper() for text in texts],
    )
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
    out = rewrite.round_trip(lm, [lm.tokenizer.bos_token_id, *ids], there, back)
    assert lm.decode(out) == back(there("Some text. More of it."))
    assert not {lm.tokenizer.bos_token_id, lm.tokenizer.eos_token_id} & set(out)
    assert out != ids


def test_bad_input_is_named(monkeypatch):
    with pytest.raises(InvalidModelError, match="expected one of en→fr, fr→en, got 'en' → 'tlh'"):
        rewrite.translator("en", "tlh")
    with pytest.raises(
        InvalidModelError,
        match=(
            r"cannot get Helsinki-NLP/opus-mt-tc-big-en-fr:"
            r" .*gaussmark\[translation\].*corrupt.resample"
        ),
    ):
        rewrite.translator("en", "fr")
    monkeypatch.setattr(rewrite.Translator, "_translated", lambda self, texts: ["" for _ in texts])
    lm = tiny_lm.build()
    with pytest.raises(GaussMarkError, match="got an empty one"):
        rewrite.round_trip(lm, lm.encode("Text."), tiny_marian(), tiny_marian())

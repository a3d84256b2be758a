"""How long texts can be: what is wanted, or what the model and the file have room for."""

import json

import pytest
import tiny_lm

from gaussmark_lib.errors import CorpusError
from gaussmark_lib.experiments import lengths


@pytest.fixture(scope="module")
def lm():
    return tiny_lm.build()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(json.dumps({"text": "x" * n}) for n in (5, 40, 12, 30)))
    return str(path)


def test_a_file_has_texts_as_long_as_its_nth_longest(lm, file):
    assert [lengths.available(lm, file, n, 100) for n in (1, 2, 3, 4)] == [40, 30, 12, 5]
    assert lengths.available(lm, file, 4, 3) == 3
    with pytest.raises(CorpusError, match="expected 5 texts, found 4"):
        lengths.available(lm, file, 5, 3)


def test_no_text_is_longer_than_the_context(lm, monkeypatch):
    monkeypatch.setattr(lm.model.config, "max_position_embeddings", 50)
    assert lengths.available(lm, "docs", 4, 200) == 50
    assert lengths.room(lm, [[1] * 20, [1] * 8], 200) == 30
    assert lengths.room(lm, [[1] * 20], 10) == 10
    monkeypatch.setattr(lengths.tokens, "context", lambda model: None)
    assert lengths.room(lm, [[1] * 20], 200) == 200

"""What several tests of runs share."""

import pytest

from gaussmark_lib.workbench.runs import notebook


@pytest.fixture
def same_library(monkeypatch):
    """The id of a question stays, whoever edits the library meanwhile."""
    monkeypatch.setattr(notebook.Notebook, "code", "tested")

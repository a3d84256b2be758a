"""A notebook that waits, fails or kills on demand, and an undisturbed sweep over it."""

from collections.abc import Iterator

import pytest
from small_notebooks import without_kernels
from sweep_places import Place

from gaussmark_lib.workbench import sweeps


@pytest.fixture(scope="session")
def sweep_place(tmp_path_factory) -> Place:
    return Place(tmp_path_factory.mktemp("sweep"))


@pytest.fixture
def place(sweep_place) -> Iterator[Place]:
    yield sweep_place
    for process in sweep_place.started:  # by a test that failed
        if process.poll() is None:
            process.terminate()
            process.communicate()
    sweep_place.started.clear()
    for what in ("hold", "fail", "kill", "pid"):
        sweep_place.unset(what)


@pytest.fixture(scope="session")
def undisturbed(sweep_place, tmp_path_factory) -> sweeps.Sweep:
    done = sweep_place.sweep(tmp_path_factory.mktemp("undisturbed"), workers=2)
    sweep_place.unset("pid")
    return done


@pytest.fixture
def in_this_process(monkeypatch):
    without_kernels(monkeypatch)

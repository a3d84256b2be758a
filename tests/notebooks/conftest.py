"""Which notebooks there are, for tests that have one case each."""

import pytest
import tracked

from gaussmark_lib import files

SOLUTIONS = tracked.files("notebooks/solutions/*.ipynb")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, paths in {
        "numbered": tracked.NOTEBOOKS,
        "any_notebook": tracked.NOTEBOOKS + SOLUTIONS,
    }.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(
                name, paths, ids=[str(path.relative_to(files.NOTEBOOKS)) for path in paths]
            )

"""Which notebooks there are, for tests that have one case each."""

import pytest

from gaussmark_lib import paths
from gaussmark_lib.runs import notebook as notebooks

NUMBERED = notebooks.numbered()
SOLUTIONS = sorted((paths.NOTEBOOKS / "solutions").glob("*.ipynb"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, files in {"numbered": NUMBERED, "any_notebook": NUMBERED + SOLUTIONS}.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(
                name, files, ids=[str(path.relative_to(paths.NOTEBOOKS)) for path in files]
            )

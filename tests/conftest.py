"""For all tests: one thread per worker, what stays together on one, no network, records, caches
and a home of their own, the same examples from hypothesis, a real browser where asked for.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many workers as cores; kernels inherit it
if (
    "torch" in sys.modules
):  # by a plugin, before this file: its threads would not live on in a test's forked process
    sys.modules["torch"].set_num_threads(1)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # it warns after a fork otherwise
os.environ.pop("GAUSSMARK_RUN_DIR", None)
ROOT = Path(__file__).resolve().parent.parent
# kernels and commands read this checkout, whichever is installed
_checkout = [str(ROOT), str(ROOT / "notebooks"), *filter(None, [os.environ.get("PYTHONPATH")])]
os.environ["PYTHONPATH"] = os.pathsep.join(_checkout)


def _own_folders() -> None:
    """Nothing of the user's is read or written; workers and kernels inherit these folders."""
    own = Path(tempfile.mkdtemp(prefix="gaussmark-tests-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    for corpus in (Path(__file__).parent.parent / "data" / "cache").glob("docs-*.parquet"):
        (own / "cache").mkdir(exist_ok=True)  # it takes a minute to read, and depends on nothing
        (own / "cache" / corpus.name).symlink_to(corpus.resolve())
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        os.environ.pop(name, None)
    os.environ.setdefault("GIT_CONFIG_GLOBAL", str(Path.home() / ".gitconfig"))  # whom git trusts
    os.environ |= {
        "HOME": str(own),
        "GAUSSMARK_RUNS": str(own / "runs"),
        "GAUSSMARK_CACHE": str(own / "cache"),
    }


if "PYTEST_XDIST_WORKER" not in os.environ:
    _own_folders()

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, max_examples=60, database=None
)
settings.load_profile("repeatable")

CHROMIUM = shutil.which("chromium")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With ``--dist loadfile`` a file stays on one worker, and so does a notebook of nbval. Cases
    marked ``spread`` get a file name of their own.

    Notebooks begin: a long one that began last would keep one core busy while the other has nothing
    left to do.
    """
    for item in items:
        if item.get_closest_marker("browser"):  # a server and a browser take a minute
            item.add_marker("slow")
    items.sort(
        key=lambda item: not (item.path.suffix == ".ipynb" or item.get_closest_marker("spread"))
    )
    for item in items:
        if "PYTEST_XDIST_WORKER" in os.environ and item.get_closest_marker("spread"):
            file, _, rest = item.nodeid.partition("::")
            item._nodeid = f"{file} {item.name}::{rest}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") and not CHROMIUM:
        missing = "needs Debian's package chromium"
        (
            pytest.fail(missing)
            if os.environ.get("GAUSSMARK_REQUIRE_BROWSER")
            else pytest.skip(missing)
        )


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium with a profile of its own, as a Playwright browser."""
    from playwright.sync_api import sync_playwright

    quiet = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
    ]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*quiet, "--disable-sync"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def model():
    """A tiny random Llama of its own for each test."""
    import tiny_models

    return tiny_models.build("llama")


@pytest.fixture(scope="module")
def lm():
    """A tiny model with its tokenizer, one for a file."""
    import tiny_lm

    return tiny_lm.build()


@pytest.fixture
def wm():
    from gaussmark_lib.perturb import Watermark

    return Watermark("model.layers.2.mlp.down_proj.weight", sigma=0.05)


@pytest.fixture
def key():
    from gaussmark_lib.perturb import Key

    return Key.from_seed(0)


@pytest.fixture
def wrong_types(monkeypatch):
    """Signatures are not checked: what the library itself answers to a value of another type than
    its signature has.
    """
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def typed(tmp_path):
    """Puts bytes on standard input, where a terminal would."""
    kept = os.dup(0)

    def put(content: bytes) -> None:
        (tmp_path / "typed").write_bytes(content)
        handle = os.open(tmp_path / "typed", os.O_RDONLY)
        os.dup2(handle, 0)
        os.close(handle)

    yield put
    os.dup2(kept, 0)
    os.close(kept)


@pytest.fixture(scope="module")
def no_table_of_selfhash():
    """transformers' KGW processor draws 1,000,003 numbers each time it is made, 20 ms, for a
    variant that nothing here uses.
    """
    import torch

    draw = torch.randperm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch,
            "randperm",
            lambda n, **options: torch.empty(0) if n == 1_000_003 else draw(n, **options),
        )
        yield

"""On what terms files of models are loaded: never with code of theirs, and from the model hub only if it answers within seconds.

The hub's own client tries every file six times and sleeps in between, which takes most of a minute without a network.
"""

from huggingface_hub import constants
from huggingface_hub.utils import get_session

PATIENCE = 5  # seconds


def reachable() -> bool:
    """True if the hub (or the mirror named by ``HF_ENDPOINT``) answers at all; False with ``HF_HUB_OFFLINE=1``."""
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # its kind depends on the HTTP library below, and on the proxy
        return False
    return True


def terms(*, local: bool = False) -> dict[str, bool]:
    """What every ``from_pretrained`` of this library is told. A model's own Python is never run, whatever its files or the terminal say."""
    return {"local_files_only": local or not reachable(), "trust_remote_code": False}


def reason(error: Exception) -> str:
    """Why a model's files could not be loaded, in one line."""
    if "trust_remote_code" in str(error):
        return "it needs Python code of its own (auto_map in its json files), which is never run; expected an architecture that transformers has"
    return first_line(error)


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the error's kind where it has none: clients of the hub write pages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]

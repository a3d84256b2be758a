"""Whether the model hub can be reached, asked once and answered within seconds.

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


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the error's kind where it has none: clients of the hub write pages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]

"""Why a kernel died, in words: what its exit code says, and what to do about it."""

import signal

import psutil

MEMORY = (
    "this is usually a lack of memory: up to {used:.1f} of {total:.1f} GiB were in use (a container"
    " or a queue may allow less). Choose a smaller model, a smaller batch, or another dtype"
)
ENDED = "another process, or the queue that the run is in, ended it. Run the notebook again"
CRASHED = (
    "a compiled library crashed in it. Run the notebook again; if it crashes again, install another"
    " version of the library that this cell uses"
)
LEFT = "a cell, or a library that it uses, ended the process by os._exit. Remove that call"
CAUSES = {-signal.SIGTERM: ENDED, -signal.SIGINT: ENDED}
if hasattr(signal, "SIGKILL"):  # not on Windows
    CAUSES[-signal.SIGKILL] = MEMORY
    CAUSES[-signal.SIGHUP] = ENDED
# multiprocessing's exit code for a fork whose server was killed
CAUSES[255] = f"the process that kernels are forked from was killed; {MEMORY}"


def explained(exit_code: int, memory: int, when: str = "") -> str:
    """Explain in a sentence why a kernel ended before its notebook.

    Args:
        exit_code: as in ``subprocess.Popen``: minus the signal's number if a signal killed it.
        memory: the largest number of bytes in use while the kernel ran.
        when: more about the time, such as ``" while it started"``.
    """
    if exit_code < 0:
        how = f"killed by signal {-exit_code}"
        cause = CAUSES.get(exit_code, CRASHED)
    else:
        how = f"exit code {exit_code}"
        cause = CAUSES.get(exit_code, LEFT)
    total = psutil.virtual_memory().total
    explanation = cause.format(used=memory / 2**30, total=total / 2**30)
    return f"the kernel died{when} ({how}); {explanation}"

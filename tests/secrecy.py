"""A key's secret in every form in which it could be printed, and where it must not be."""

import base64
import traceback

from gaussmark_lib.keys import Key


def forms(key: Key) -> list[str]:
    return [
        key.secret.hex(),
        repr(key.secret)[2:-1],
        str(key.seed),
        str(list(key.secret)),
        base64.b64encode(key.secret).decode(),
    ]


def assert_not_shown(error: BaseException, key: Key) -> None:
    """Not in a traceback, not even in one that prints contexts and the local variables of the
    library's own frames.
    """
    text = ""
    while error:
        files = [
            (frame, frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)
        ]
        frames = [
            frame
            for frame, file in files
            if "gaussmark_lib" in file and not file.startswith("<@beartype")
        ]  # not the test run's checks of signatures
        text += (
            "".join(traceback.format_exception(error))
            + repr(vars(error))
            + repr([frame.f_locals for frame in frames])
        )
        error = error.__context__
    for form in forms(key):
        assert form not in text

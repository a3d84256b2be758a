"""A key's secret in every form in which code is likely to print it, and where it must not be."""

import base64
import json
import re
import traceback

from gaussmark_lib.keys import Key

OURS = re.compile("gaussmark_(lib|experiments)")


def forms(secret: bytes) -> dict[str, list[bytes]]:
    """What to search for; base64 at each of its three alignments, without the characters that
    depend on the neighbours.
    """
    encoded = [
        base64.b64encode(bytes(shift) + secret)[-(-shift * 8 // 6) : -4] for shift in range(3)
    ]
    numbers = [int.from_bytes(secret, order) for order in ("big", "little")]
    escaped = repr(secret)[2:-1]
    return {
        "bytes": [secret, secret[::-1]],
        "hex": [secret.hex().encode(), secret.hex().upper().encode(), secret.hex(" ").encode()],
        "integer": [str(number).encode() for number in numbers],
        "base64": [
            text
            for plain in encoded
            for text in (plain, plain.replace(b"+", b"-").replace(b"/", b"_"))
        ],
        "repr": [
            escaped.encode(),
            json.dumps(escaped)[1:-1].encode(),
            str(list(secret))[1:-1].encode(),
        ],
    }


def leaks(content: str | bytes, secret: bytes) -> list[str]:
    """The forms in which the secret stands there."""
    content = content.encode() if isinstance(content, str) else content
    return [
        form
        for form, needles in forms(secret).items()
        if any(needle in content for needle in needles)
    ]


def assert_not_shown(error: BaseException, key: Key) -> None:
    """Not in a traceback, not even in one that prints contexts and the local variables of the
    library's own frames.
    """
    text = ""
    while error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        files = [frame.f_code.co_filename for frame in frames]
        inner = [
            frame.f_locals
            for frame, file in zip(frames, files, strict=True)
            if OURS.search(file) and not file.startswith("<@beartype")  # checks of signatures
        ]
        text += "".join(traceback.format_exception(error)) + repr(vars(error)) + repr(inner)
        error = error.__context__
    assert leaks(text, key.secret) == []

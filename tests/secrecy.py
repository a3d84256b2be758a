"""A key's secret in every form in which code is likely to print it, and places without it."""

import base64
import json
import re
import traceback

from gaussmark_lib.keys import Key

OURS = re.compile("gaussmark_(lib|experiments)")


def forms(secret: bytes) -> dict[str, list[bytes]]:
    """Return the bytes to search for, by form. Base64 comes in its three alignments, without the
    characters that depend on neighbouring bytes.
    """
    encoded = []
    for shift in range(3):
        first = -(-shift * 8 // 6)  # the first character that is only of the secret
        encoded.append(base64.b64encode(bytes(shift) + secret)[first:-4])
    numbers = [int.from_bytes(secret, order) for order in ("big", "little")]
    escaped = repr(secret)[2:-1]
    in_decimals = str(list(secret))[1:-1]
    url_safe = bytes.maketrans(b"+/", b"-_")
    return {
        "bytes": [secret, secret[::-1]],
        "hex": [secret.hex().encode(), secret.hex().upper().encode(), secret.hex(" ").encode()],
        "integer": [str(number).encode() for number in numbers],
        "base64": [text for plain in encoded for text in (plain, plain.translate(url_safe))],
        "repr": [escaped.encode(), json.dumps(escaped)[1:-1].encode(), in_decimals.encode()],
    }


def leaks(content: str | bytes, secret: bytes) -> list[str]:
    """Return the forms in which the content contains the secret."""
    if isinstance(content, str):
        content = content.encode()
    return [
        form
        for form, needles in forms(secret).items()
        if any(needle in content for needle in needles)
    ]


def assert_not_shown(error: BaseException, key: Key) -> None:
    """Assert that the secret is in no traceback, not even in a traceback that prints contexts and
    the local variables of the library's own frames.
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

"""What may happen to a text between model and detector.

``edits``: token by token; ``by_model``: rewriting by a language model, translation there and back;
``registry``: all of them by name.
"""

from gaussmark_lib.corrupt.by_model import Translator, resample, round_trip, translator
from gaussmark_lib.corrupt.edits import (
    count,
    delete,
    each,
    generator,
    insert,
    of_whole,
    retokenise,
    splice,
    substitute,
    truncate,
    wrong_prompts,
)
from gaussmark_lib.corrupt.registry import (
    ALL_OR_NOTHING,
    Change,
    Pairs,
    named,
    register,
    spliced,
    translation,
)

__all__ = [
    "ALL_OR_NOTHING",
    "Change",
    "Pairs",
    "Translator",
    "count",
    "delete",
    "each",
    "generator",
    "insert",
    "named",
    "of_whole",
    "register",
]
__all__ += [
    "resample",
    "retokenise",
    "round_trip",
    "splice",
    "spliced",
    "substitute",
    "translation",
    "translator",
    "truncate",
    "wrong_prompts",
]

"""A notebook's parameters: read from its source, and checked before anything runs.

Papermill only logs an unknown name and checks no types, so a misspelt ``sgima`` would silently run
with the default of ``sigma``. Here the cell tagged ``parameters`` declares everything, one
annotated literal per line:

    sigma: float = 0.05  # (0, 1] standard deviation of the noise
    scheme: str = "plain"  # {plain, low_rank} which noise
    n_texts: int = 64  # [1, 10000] texts to score
    weight: str | None = None  # name of the matrix; None takes the model's default

The cell is parsed, never executed. Pydantic checks values in strict mode: True is not an int, 3 is
accepted as a float, nan is refused.
"""

import ast
import io
import operator
import os
import re
import tokenize
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

from gaussmark_lib.errors import ParameterError, shown
from gaussmark_lib.runs import presets
from gaussmark_lib.words import nearest

STRICT = ConfigDict(strict=True, allow_inf_nan=False)

_NUMBER = r"[-+]?(?:inf|[\d.]+(?:[eE][-+]?\d+)?)"
_RANGE = re.compile(rf"([\[(])\s*({_NUMBER})\s*,\s*({_NUMBER})\s*([\])])\s*(.*)")
_CHOICES = re.compile(r"\{(.*?)\}\s*(.*)")
_PLACE = re.compile(
    r"(\.{1,2}|~)/.*", re.DOTALL
)  # how a shell writes a place that is seen from where one stands


@dataclass(frozen=True)
class Parameter:
    """One line of the cell. ``type`` includes the range or the choices; ``allowed`` states them in
    words.
    """

    name: str
    type: Any
    default: Any
    allowed: str
    help: str

    def check(self, value: Any) -> Any:
        """``value`` as the parameter's type; raises pydantic's ValidationError where it does not
        fit.
        """
        return self._adapter.validate_python(value)

    @cached_property
    def _adapter(self) -> TypeAdapter:
        return TypeAdapter(self.type, config=STRICT)

    def fits(self, value: Any) -> bool:
        try:
            self.check(value)
        except ValidationError:
            return False
        return True

    def parse(self, text: str) -> Any:
        """The value of a typed text: the text itself where a string is allowed, otherwise (and for
        None) parsed as YAML.
        """
        null = text in ("None", "null") and self.fits(None)
        return text if self.fits(text) and not null else presets.load(text)

    def __str__(self) -> str:
        return f"{self.name}: {self.allowed} = {self.default!r}" + (
            f"  # {self.help}" if self.help else ""
        )


def read(source: str, name: str = "notebook") -> dict[str, Parameter]:
    """The parameters that a cell's source declares, in order.

    Raises:
        ParameterError: a line that is not ``name: type = literal``, or a default outside its own
            range.
    """
    try:
        tree = ast.parse(source)
        comments = _comments(source)
    except (
        SyntaxError,
        ValueError,
        tokenize.TokenError,
        RecursionError,
        MemoryError,
    ) as error:  # the last two: nested too deeply
        raise ParameterError(f"{name}: the parameters cell is not Python: {error}") from None
    found: dict[str, Parameter] = {}
    last_line = 0
    for statement in tree.body:
        try:
            if statement.lineno <= last_line:
                raise ParameterError("expected one parameter per line")
            last_line = statement.end_lineno
            parameter = _parameter(
                statement,
                " ".join(
                    comments.get(line, "") for line in range(statement.lineno, last_line + 1)
                ).strip(),
            )
            if parameter.name in found:
                raise ParameterError("declared twice")
        except ValueError as error:
            line = ast.get_source_segment(source, statement)
            raise ParameterError(
                f"{name}: line {statement.lineno} of the parameters cell, `{line}`: {error}"
            ) from None
        found[parameter.name] = parameter
    return found


def check(
    declared: Mapping[str, Parameter], given: Mapping[str, Any], name: str = "notebook"
) -> dict[str, Any]:
    """The value of every declared parameter: the given one, checked, or the default.

    Raises:
        ParameterError: lists all values that cannot be used, each with the expected and the given
            value.
    """
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"{name}: expected a mapping from parameters' names to values, got {shown(given)}"
        )
    problems, values = [], {}
    for key, value in given.items():
        try:
            values[key] = declared[key].check(value)
        except KeyError:
            problems.append(f"{key}: no such parameter; {nearest(key, declared)}")
        except ValidationError:
            problems.append(f"{key}: expected {declared[key].allowed}, got {shown(value)}")
    if problems:
        raise ParameterError("\n  ".join([f"{name} cannot run with these parameters:", *problems]))
    return {key: values.get(key, parameter.default) for key, parameter in declared.items()}


def parse(declared: Mapping[str, Parameter], typed: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Values from a command line's (name, text) pairs; unknown names are kept, so that ``check``
    reports them with all other problems.

    A path is seen from where the command was typed: a text that begins with ``./``, ``../`` or
    ``~/``, and the name of a model's folder or of a ``.jsonl`` file that is there.
    """
    values: dict[str, Any] = {}
    for key, text in typed:
        if key in values:
            raise ParameterError(f"{key} was given twice; give each parameter once")
        try:
            values[key] = _placed(key, declared[key].parse(text)) if key in declared else text
        except ValueError as error:
            raise ParameterError(f"{key}: cannot read {shown(text)}: {error}") from None
    return values


def _placed(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_placed(name, item) for item in value]
    if not isinstance(value, str) or not value or "\0" in value:
        return value
    place = os.path.abspath(os.path.expanduser(value))
    is_place = _PLACE.fullmatch(value) and (
        os.path.exists(place) or not re.search(r"\s", value)
    )  # "./configure is run first" is a text
    is_model = name == "model" and value != "doclm" and os.path.isdir(place)
    return (
        place
        if is_place
        or is_model
        or (value.endswith((".jsonl", ".jsonl.gz")) and os.path.isfile(place))
        else value
    )


def _comments(source: str) -> dict[int, str]:
    """Line number → its comment without the hash. Tokens, because a ``#`` may stand inside a
    string.
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def _parameter(statement: ast.stmt, comment: str) -> Parameter:
    if not (
        isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and statement.value is not None
    ):
        raise ParameterError("expected `name: type = literal  # [low, high] help`")
    try:
        default = ast.literal_eval(statement.value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ParameterError(
            "expected a literal; what is derived belongs in a later cell"
        ) from None
    annotation = ast.unparse(statement.annotation)
    limit, words, help_text = _limit(comment)
    parameter = Parameter(
        statement.target.id,
        _type(statement.annotation, limit),
        default,
        annotation + words,
        help_text,
    )
    try:
        return replace(
            parameter, default=parameter.check(default)
        )  # 1 becomes the float that it stands for
    except ValidationError:
        raise ParameterError(f"the default {default!r} is not {parameter.allowed}") from None
    except TypeError:  # the type has no order
        raise ParameterError(f"a range does not go with {annotation}") from None


def _limit(comment: str) -> tuple[list[AfterValidator], str, str]:
    """(pydantic's check, the same in words, the help text) of a comment ``[low, high] help``, ``{a,
    b} help`` or ``help``.
    """
    if match := _RANGE.fullmatch(comment):
        left, low, high, right, help_text = match.groups()
        bottom, top = float(low), float(high)
        above = operator.ge if left == "[" else operator.gt
        below = operator.le if right == "]" else operator.lt
        return (
            [_only(lambda value: above(value, bottom) and below(value, top))],
            f" in {left}{low}, {high}{right}",
            help_text,
        )
    if match := _CHOICES.fullmatch(comment):
        choices = [presets.load(choice) for choice in match[1].split(",")]
        return (
            [_only(lambda value: value in choices)],
            f", one of {', '.join(map(repr, choices))}",
            match[2],
        )
    if comment.startswith(("[", "{")):
        raise ParameterError("expected `# [low, high] help` or `# {a, b} help`")
    return [], "", comment


def _only(accepts: Callable[[Any], bool]) -> AfterValidator:
    def validate(value: Any) -> Any:
        if not accepts(value):
            raise ParameterError("not allowed")
        return value

    return AfterValidator(validate)


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ParameterError("half a character, which no file can hold") from None
    return text


SCALARS = {"int": int, "float": float, "str": Annotated[str, AfterValidator(_whole)], "bool": bool}


def _type(node: ast.expr, limit: list[AfterValidator]) -> Any:
    """The type of an annotation, with the limit on its innermost scalars. Nothing is evaluated."""
    match node:
        case ast.Name(id=name) if name in SCALARS:
            return Annotated[(SCALARS[name], *limit)] if limit else SCALARS[name]
        case ast.Constant(value=None):
            return None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type(left, limit) | _type(right, limit)
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return list[_type(item, limit)]
    raise ParameterError(
        f"cannot check the type {ast.unparse(node)}; int, float, str, bool, list[…] and … | None"
        " can be"
    )

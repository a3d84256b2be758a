"""A notebook's parameters: read from its source, and checked before anything runs.

Papermill only logs an unknown name and checks no types, so a misspelt ``sgima`` would silently run
with the default of ``sigma``. Here the cell tagged ``parameters`` declares everything, with one
annotated literal per line:

    sigma: float = 0.05  # (0, 1] standard deviation of the noise
    scheme: str = "plain"  # {plain, low_rank} which noise
    weight: str | None = None  # name of the matrix; None takes the model's default

The cell is parsed, never executed. Each line becomes a type for pydantic, such as
``Annotated[float, Field(gt=0, le=1)]``, which checks values in strict mode: True is not an int, 3
is accepted as a float, nan is refused.
"""

import ast
import io
import os
import re
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent

from gaussmark_lib.errors import ParameterError, shown
from gaussmark_lib.workbench.words import nearest

STRICT = ConfigDict(strict=True, allow_inf_nan=False)
MOST_CHARACTERS = 100_000  # of a YAML document
# parameters that may name a file or folder that the notebook reads, relative to its own folder
PATHS = ("model", "text", "folder", "checkpoint", "tasks_data")
PATH_ENDINGS = ("_file", "_folder", "_path")  # of other such parameters
# the parser's own error, and the errors of tags and numbers that do not fit, and of deep nesting
NOT_YAML = (YAMLError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
NOT_PYTHON = (SyntaxError, ValueError, TypeError, tokenize.TokenError, RecursionError, MemoryError)


def is_path(name: str) -> bool:
    """Return whether a parameter of this name may name a file or folder that a notebook reads."""
    return name in PATHS or (name.endswith(PATH_ENDINGS) and not name.startswith("save_"))


def _encodable(text: str) -> str:
    text.encode()  # or UnicodeEncodeError: half a character, which no file can hold
    return text


SCALARS = {
    "int": int,
    "float": float,
    "str": Annotated[str, AfterValidator(_encodable)],
    "bool": bool,
}
_NUMBER = r"[-+]?(?:inf|[\d.]+(?:[eE][-+]?\d+)?)"
_RANGE = re.compile(rf"([\[(])\s*({_NUMBER})\s*,\s*({_NUMBER})\s*([\])])\s*(.*)")
_CHOICES = re.compile(r"\{(.*?)\}\s*(.*)")


@dataclass(frozen=True)
class Parameter:
    """A line of the cell. ``type`` includes the range or the choices; ``allowed`` states them in
    words.
    """

    name: str
    type: TypeAdapter
    default: Any
    allowed: str
    help: str

    def fits(self, value: Any) -> bool:
        """Return whether the parameter may have this value."""
        try:
            self.type.validate_python(value)
        except ValidationError:
            return False
        return True

    def parse(self, text: str) -> Any:
        """Return the value of a typed text: the text itself if a string is allowed, otherwise the
        value parsed as YAML. A path is relative to the folder in which the command was typed.
        """
        if text in ("None", "null") and self.fits(None):
            return None
        value = text if self.fits(text) else yaml(text)
        if not is_path(self.name) or not isinstance(value, str):
            return value
        if value in ("", self.default) or "\0" in value:
            return value
        path = os.path.abspath(os.path.expanduser(value))
        # ``docs`` may be the name of a kind of text, and the name of a folder
        exists = os.path.isfile if self.name == "text" else os.path.exists
        return path if exists(path) else value

    def __str__(self) -> str:
        about = f"  # {self.help}" if self.help else ""
        return f"{self.name}: {self.allowed} = {self.default!r}{about}"


def read(source: str, name: str = "notebook") -> dict[str, Parameter]:
    """Return the parameters that a cell's source declares, in order. ParameterError for a line that
    is not ``name: type = literal``, or a default outside its range.
    """
    try:
        tree = ast.parse(source)
        comments = _comments(source)
    except NOT_PYTHON as error:
        raise ParameterError(f"{name}: the parameters cell is not Python: {error}") from None
    declared: dict[str, Parameter] = {}
    for statement in tree.body:
        lines = range(statement.lineno, statement.end_lineno + 1)
        comment = " ".join(comments[line] for line in lines if line in comments)
        try:
            parameter = _parameter(statement, comment)
            if parameter.name in declared:
                raise ParameterError("declared twice")
        except ValueError as error:
            line = ast.get_source_segment(source, statement)
            raise ParameterError(
                f"{name}: line {statement.lineno} of the parameters cell, `{line}`: {error}"
            ) from None
        declared[parameter.name] = parameter
    return declared


def _comments(source: str) -> dict[int, str]:
    """Line number → comment. Found by tokens, because a string may contain ``#``."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def _parameter(statement: ast.stmt, comment: str) -> Parameter:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            pass
        case _:
            raise ParameterError("expected `name: type = literal  # [low, high] help`")
    try:
        default = ast.literal_eval(statement.value)
    except NOT_PYTHON:
        raise ParameterError("expected a literal; derived values belong in a later cell") from None
    limit, in_words, help_text = _limit(comment)
    allowed = ast.unparse(statement.annotation) + in_words
    type_of_value = _type(statement.annotation, limit)
    try:
        type_ = TypeAdapter(type_of_value, config=STRICT)
        default = type_.validate_python(default)  # 1 becomes a float's 1.0
    except Exception:  # a ValidationError; or a range does not go with the type
        raise ParameterError(f"the default {default!r} is not {allowed}") from None
    return Parameter(name, type_, default, allowed, help_text)


def _limit(comment: str) -> tuple[Any, str, str]:
    """(pydantic's limit, the limit in words, the help text) of a comment ``[low, high] help``,
    ``{a, b} help`` or ``help``.
    """
    if match := _RANGE.fullmatch(comment):
        left, low, high, right, help_text = match.groups()
        lower_limit = "ge" if left == "[" else "gt"
        upper_limit = "le" if right == "]" else "lt"
        limits = {lower_limit: _bound(low), upper_limit: _bound(high)}
        in_words = f" in {left}{low}, {high}{right}"
        return Field(**limits), in_words, help_text
    if match := _CHOICES.fullmatch(comment):
        choices = tuple(yaml(choice) for choice in match[1].split(","))
        in_words = f", one of {', '.join(map(repr, choices))}"
        return Literal[choices], in_words, match[2]
    if comment.startswith(("[", "{")):
        raise ParameterError("expected `# [low, high] help` or `# {a, b} help`")
    return None, "", comment


def _bound(text: str) -> float | None:
    """A bound as pydantic takes it; None for an infinite bound."""
    if text.endswith("inf"):
        return None
    number = float(text)
    return int(number) if number.is_integer() else number


def _type(node: ast.expr, limit: Any) -> Any:
    """The type of an annotation, with the limit on its innermost scalars. Nothing is evaluated."""
    match node:
        case ast.Name(id=name) if name in SCALARS:
            if isinstance(limit, FieldInfo):  # a range
                return Annotated[SCALARS[name], limit]
            return limit or SCALARS[name]  # the choices, or any value
        case ast.Constant(value=None):
            return None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type(left, limit) | _type(right, limit)
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return list[_type(item, limit)]
    raise ParameterError(
        f"cannot check the type {ast.unparse(node)}; use int, float, str, bool, list[…] or … | None"
    )


def check(
    declared: Mapping[str, Parameter], given: Mapping[str, Any], name: str = "notebook"
) -> dict[str, Any]:
    """Return the value of each declared parameter: the given value, checked, or the default.
    ParameterError lists all values that cannot be used, each with the expected type and range.
    """
    problems = []
    values = {}
    for key, value in given.items():
        try:
            values[key] = declared[key].type.validate_python(value)
        except KeyError:
            problems.append(f"{key}: no such parameter; {nearest(key, declared)}")
        except ValidationError:
            problems.append(f"{key}: expected {declared[key].allowed}, got {shown(value)}")
    if problems:
        title = f"{name} cannot run with these parameters:"
        raise ParameterError("\n  ".join([title, *problems]))
    return {key: values.get(key, parameter.default) for key, parameter in declared.items()}


def parse(declared: Mapping[str, Parameter], typed: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parse the (name, text) pairs of a command line. Unknown names stay, so that ``check`` reports
    them with all other problems.
    """
    values: dict[str, Any] = {}
    for key, text in typed:
        if key in values:
            raise ParameterError(f"{key} was given twice; give each parameter only once")
        if key not in declared:
            values[key] = text
            continue
        try:
            values[key] = declared[key].parse(text)
        except ValueError as error:
            raise ParameterError(f"{key}: cannot read {shown(text)}: {error}") from None
    return values


def yaml(text: str) -> Any:
    """Return the value of a YAML 1.2 document, as people expect it: 1e-3 is a number, ``no`` is a
    word, a repeated name is an error. ParameterError, in one line, if it cannot be read.
    """
    if len(text) > MOST_CHARACTERS:
        raise ParameterError(
            f"expected at most {MOST_CHARACTERS:,} characters of YAML, got {len(text):,}"
        )
    reader = YAML(typ="safe", pure=True)
    try:
        value = reader.load(text)
        events = reader.parse(text) if "*" in text else ()
        has_alias = any(isinstance(event, AliasEvent) for event in events)
    except NOT_YAML as error:
        problem = str(getattr(error, "problem", None) or error)
        in_one_line = " ".join(problem.split())
        raise ParameterError(f"cannot be read as YAML: {in_one_line[:200]}") from None
    if has_alias:  # a few characters of aliases can stand for gigabytes
        raise ParameterError("expected YAML without aliases (*name); write the values out")
    return value

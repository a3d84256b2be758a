"""The help of a command: at most eight options, and further options under "Advanced"."""

from collections import defaultdict
from typing import Any

from typer.core import TyperCommand

ADVANCED = "Advanced"  # an option's ``rich_help_panel``


def examples(*commands: str) -> str:
    """Return the end of a help: examples in lines that are not joined (``\\b``)."""
    lines = "\n".join(f"  gaussmark {command}" for command in commands)
    return f"\b\nExamples:\n{lines}"


class Command(TyperCommand):
    """A command whose help groups its options by their panel, in plain text."""

    def format_options(
        self, ctx: Any, formatter: Any
    ) -> None:  # typer has no public types for them
        """Write the arguments, the options and the advanced options, each with a heading."""
        panels = defaultdict(list)
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                panels["Arguments"].append(record)
            else:
                panel = getattr(parameter, "rich_help_panel", None)
                panels[panel or "Options"].append(record)
        for name in ("Arguments", "Options", ADVANCED):
            if panels[name]:
                with formatter.section(name):
                    formatter.write_dl(panels[name])

"""``gaussmark detect --normalise``: each text is tested as it is and with plain characters."""

from collections.abc import Mapping
from dataclasses import dataclass

from gaussmark_lib.beyond import promise, tracing
from gaussmark_lib.engine import typography
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.workbench.cli.answers import Row
from gaussmark_lib.workbench.cli.batches import Scoring, Windows
from gaussmark_lib.workbench.cli.inputs import Item

Versions = tuple[Windows, Windows | None]  # as given; normalised, or None where that is the same


@dataclass
class Normalising(Scoring):
    """One row per text and key, with the p-value of the larger of two ψ."""

    def __post_init__(self):
        super().__post_init__()
        self.asked.append("normalised")

    def sentence(self, row: Row, *, alone: bool) -> str:
        answer = super().sentence(row, alone=alone)
        if "psi_normalised" not in row:
            return answer
        tests = (
            f"Tested as given (ψ = {row['psi_as_given']:.3f}) and with plain characters"
            f" (ψ = {row['psi_normalised']:.3f}); p takes both tests into account."
        )
        return f"{answer}\n{tests}" if alone else f"{answer}; {tests}"

    def _remarks(self, item: Item) -> list[str]:
        return []  # the plain characters are tested

    def _encoded(self, item: Item) -> Versions:
        given = super()._encoded(item)
        text = typography.normalised(item.text)
        if text in ("", item.text):
            return given, None
        return given, super()._encoded(item._replace(text=text))

    def _scored(self, encoded: Mapping[int, Versions]) -> list[list[Row]]:
        plain = {row: given for row, (given, normalised) in encoded.items() if normalised is None}
        rows = dict(zip(plain, super()._scored(plain), strict=True))
        for row, (given, normalised) in encoded.items():
            if normalised is not None:
                rows[row] = self._in_both(given, normalised)
        return [rows[row] for row in encoded]

    def _in_both(self, given: Windows, normalised: Windows) -> list[Row]:
        """Promise and length are those of the normalised text, as the model may have written it."""
        prompts, responses = normalised
        settings = {"token_weights": self.token_weights, "batch_size": 1}
        texts = self.lm.model, prompts, responses, self.wm
        of_windows = promise.table(*texts, **settings, unknown_prompt=self.lm.unknown_prompt())
        promised = promise.together(of_windows)
        try:
            table = tracing.any_version(
                self.lm.model,
                [normalised, given],
                self.wm,
                self._keys_and_control(),
                **settings,
            )
        except DegenerateScoreError as error:
            return [{"error": str(error)}]
        rows = self._rows(table.assign(error=None, **promised))
        for row, (of_normalised, of_given) in zip(rows, table["psi_of_each"], strict=False):
            row["psi_as_given"] = of_given
            row["psi_normalised"] = of_normalised
            if len(prompts) > 1:
                row["windows"] = len(prompts)
        return rows

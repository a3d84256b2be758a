"""``gaussmark detect --normalise``: each text is tested as given and with plain characters."""

from typing import Any

from gaussmark_lib.engine import typography
from gaussmark_lib.workbench.cli.answers import Row
from gaussmark_lib.workbench.cli.inputs import Item
from gaussmark_lib.workbench.cli.scoring import Encoded, Scoring


class Normalising(Scoring):
    """Gives each text one row per key, with the p-value of the larger of two ψ."""

    @property
    def asked(self) -> list[Any]:
        """What distinguishes these answers from those without ``--normalise``."""
        return [*super().asked, "normalised"]

    def encode(self, item: Item) -> Encoded:
        """Return the token ids of both versions of a text.

        Promise and length are those of the first version, the normalised text: the model may have
        written it.
        """
        as_given = super().encode(item)
        text = typography.normalised(item.text)
        # Both versions would be the same, or one would have nothing to test.
        if text in ("", item.text):
            return as_given
        normalised = super().encode(item._replace(text=text))
        n_windows = normalised.n_windows + as_given.n_windows
        return Encoded(item, [*normalised.versions, *as_given.versions], n_windows)

    def row(self, scores: Row, control: float | None) -> Row:
        """Return the answer to a text and key, with the ψ of both versions."""
        row = super().row(scores, control)
        # A text with a single version has a single ψ.
        if "psi_of_each" in scores:
            row["psi_normalised"], row["psi_as_given"] = scores["psi_of_each"]
        return row

    def remarks(self, item: Item) -> list[str]:
        """Return no remark: the plain characters are tested."""
        return []

    def sentence(self, row: Row, *, alone: bool) -> str:
        """Return the answer in words, with the ψ of both versions."""
        answer = super().sentence(row, alone=alone)
        if "psi_normalised" not in row:
            return answer
        tests = (
            f"Tested as given (ψ = {row['psi_as_given']:.3f}) and with plain characters"
            f" (ψ = {row['psi_normalised']:.3f}); p takes both tests into account."
        )
        return f"{answer}\n{tests}" if alone else f"{answer}; {tests}"

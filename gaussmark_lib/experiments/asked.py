"""Texts that are tested one after another with one key: what each says that those before it had not
(``joint``).

σ cancels in ψ, and a key's noises at different σ are one noise, scaled: so a memory is of a key and
a weight, at every σ.
"""

import numpy as np

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.experiments.played import Given
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.joint import law, repeats
from gaussmark_lib.joint.state import BUDGET, State
from gaussmark_lib.perturb import Key
from gaussmark_lib.tokens import Ids
from gaussmark_lib.watermark import PlacedWatermark

MOST = 4  # memories; of more, the one that was used longest ago is forgotten


class Asked:
    """What was asked, in as many bytes of gradients as one stream may take by default, divided
    evenly.
    """

    def __init__(self, budget: int = BUDGET):
        self._budget, self._states = budget // MOST, {}

    def given(
        self, wm: PlacedWatermark, key: Key, found: TextGradient, psi: float, response: Ids
    ) -> Given:
        """As ``joint.sequence`` after all texts before with this key and weight; then this text is
        one of them. ``found`` is its summed gradient.
        """
        name = key.fingerprint, wm.linear.name
        state = self._states[name] = self._states.pop(name, None) or State(self._budget)
        while len(self._states) > MOST:
            del self._states[next(iter(self._states))]
        try:
            return _given(state, wm, key, found, psi, response)
        except GaussMarkError:  # no room is left: what was asked before is forgotten
            state = self._states[name] = State(self._budget)
            return _given(state, wm, key, found, psi, response)


def _given(
    state: State, wm: PlacedWatermark, key: Key, found: TextGradient, psi: float, response: Ids
) -> Given:
    answer = state.use(wm, [key]).ask(
        law.unit(found), np.array([psi]), repeats.runs(response), n_before := state.n_texts
    )
    state.n_texts += 1
    return Given(n_before, float(answer.p_given[0]), float(answer.innovation[0]), answer.repeats)

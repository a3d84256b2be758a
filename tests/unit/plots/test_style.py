import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

from gaussmark_lib.workbench.plots import style


def test_what_is_no_scheme_never_has_a_schemes_colour():
    schemes = {to_hex(colour) for colour, _ in style.SCHEMES.values()} | {to_hex(style.PLAIN)}
    assert not schemes & set(map(to_hex, style.OTHERS))
    assert len(set(style.OTHERS)) == len(style.OTHERS)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.02, 0.6, [0.02, 0.05, 0.1, 0.2, 0.5]), (1e-3, 1.0, [0.001, 0.01, 0.1, 1.0])],
)
def test_a_narrow_logarithmic_axis_has_ticks_between_the_powers_of_ten(low, high, ticks):
    _, axes = plt.subplots()
    axes.set(xscale="log", xlim=(low, high))
    style.few_log_ticks(axes.xaxis)
    shown = [tick for tick in axes.get_xticks() if low * 0.999 <= tick <= high * 1.001]
    assert np.allclose(shown, ticks)
    plt.close("all")

"""Names of an earlier version: see ``weights``."""

from gaussmark_lib.weights import PlacedWatermark, Watermark, checked

__all__ = ["PlacedWatermark", "Watermark", "checked", "placed"]


def placed(model, wm):
    return checked(wm).on(model)

"""How close two computations of the same number must be: a rule, instead of a tolerance that fits
one processor.
"""

import torch


def of_sum(dtype: torch.dtype, n: int) -> float:
    """Return how far rounding may move a sum of n terms, relative to the sum of the terms' sizes:
    n times the dtype's relative precision. For ψ, whose terms' sizes sum to at most √n, use it as
    an absolute tolerance: n terms round to both sides.
    """
    return n * torch.finfo(dtype).eps

"""How close two computations of one number must be: a rule, in place of a number that fits one
processor.
"""

import torch


def of_sum(dtype: torch.dtype, n: int) -> float:
    """What rounding may move a sum of n terms by, relative to the sum of the terms' sizes:
    n times the dtype's relative precision. For ψ, whose terms' sizes sum to at most √n, take it
    as an absolute tolerance: n terms round to both sides.
    """
    return n * torch.finfo(dtype).eps

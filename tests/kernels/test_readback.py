"""Numbers are read back as they are, or refused."""

import math

import pytest
import torch
from torch import Tensor

from slidepack.kernels import Readback


def test_on_a_cpu_the_values_are_those_of_the_tensor() -> None:
    readback = Readback()
    for values in ([], [1.0 / 3.0], [math.inf, -0.0, 5e-324, 1e308]):
        assert readback.read(torch.tensor(values, dtype=torch.float64)) == values
    assert math.isnan(readback.read(torch.tensor([math.nan], dtype=torch.float64))[0])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (torch.zeros(2), "float32"),
        (torch.zeros((), dtype=torch.float64), r"\(\)"),
        (torch.zeros(2, 3, dtype=torch.float64), r"\(2, 3\)"),
    ],
    ids=["fp32", "scalar", "table"],
)
def test_what_does_not_fit_is_refused(values: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Readback().read(values)

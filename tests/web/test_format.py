"""How pages write times that the database may hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidepack.web.format import clock


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_may_stand_where_a_time_does(seconds: float) -> None:
    assert isinstance(clock(seconds), str)


@pytest.mark.parametrize("seconds", [None, 1e300, -1e300, float("inf"), float("nan")])
def test_what_is_no_time_is_left_empty(seconds: float | None) -> None:
    assert clock(seconds) == ""
    assert clock(1_796_000_000.0)

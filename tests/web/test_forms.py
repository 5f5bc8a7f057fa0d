"""The new-job form: empty fields, choices, and what it says to values that make no sense."""

import pytest

from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.forms import job_request

_CHOSEN = {"model": "m", "dataset": "1"}


def test_longer_rows_are_dropped_unless_the_form_says_otherwise() -> None:
    assert job_request(_CHOSEN).too_long == "drop"
    for choice in ("drop", "cut", "split"):
        assert job_request(_CHOSEN | {"too_long": choice}).too_long == choice


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        ("too_long", "shred", "too_long is shred; use drop, cut or split"),
        ("method", "magic", "method is magic; use lora or full"),
        ("rank", "many", "rank is many; use a whole number"),
        ("lr", "0,001", "lr is 0,001; use a number"),
    ],
)
def test_a_wrong_value_is_named_with_what_to_use(field: str, text: str, why: str) -> None:
    with pytest.raises(SlidepackError) as caught:
        job_request(_CHOSEN | {field: text})
    assert (caught.value.report.code, caught.value.report.why) == ("RUN-SPEC-INVALID", why)

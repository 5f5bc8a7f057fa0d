"""Settings to a specification."""

import pytest

from slidepack.daemon.requests import JobSettings, advice, job_spec
from slidepack.engine.contract.job import DatasetRef, ModelRef, TooLong

_BASE = ModelRef(model_id="m", path="/models/m", content_hash="b" * 64)
_ROWS = DatasetRef(dataset_id="1", path="/data/rows.jsonl", content_hash="a" * 64)


@pytest.mark.parametrize("too_long", ["drop", "cut", "split"])
def test_a_specification_says_what_becomes_of_longer_rows(too_long: TooLong) -> None:
    assert job_spec(JobSettings(too_long=too_long), "t", _BASE, _ROWS, None).too_long == too_long
    assert job_spec(JobSettings(), "t", _BASE, _ROWS, None).too_long == "drop"


def test_only_a_setting_with_choices_has_advice() -> None:
    assert advice("too_long") == "use drop, cut or split"
    assert advice("method") == "use lora or full"
    assert advice("rank") == advice("nothing") == advice("") == ""

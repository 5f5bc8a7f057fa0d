"""The form of a new job: defaults, several values, and each field's own problem."""

import pytest

from slidepack.web.job_form import NewJob, parse_new_job
from slidepack.web.many_values import split_values

_NOW = 1_800_000_000.0
_CHOSEN = {"pick": "small:lora", "dataset": "3"}


def parsed(**fields: str) -> NewJob:
    return parse_new_job(_CHOSEN | fields, _NOW)


def test_an_empty_form_is_the_usual_job() -> None:
    found = parsed()
    assert not found.problems
    job = found.job()
    assert (job.model, job.dataset, job.method, job.rank, job.lr) == ("small", 3, "lora", 16, None)
    assert (parsed(dataset="").missing, parsed(pick="").missing) != ("", "")


def test_the_way_of_training_is_chosen_with_the_model() -> None:
    assert parsed(pick="small:qlora").job().base_precision == "nf4"
    full = parsed(pick="small:full").job()
    assert (full.method, full.base_precision) == ("full", "auto")
    assert "pick" in parsed(pick="small:magic").problems


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        ("too_long", "shred", "too_long is shred; use drop, cut or split"),
        ("rank", "many", "rank is many; use a whole number"),
        ("rank", "0", "rank is 0; use 1 to 1024"),
        ("lr", "0,001", "lr is 0,001; write a dot for a fraction, or a space behind each comma"),
        ("lr", "fast", "lr is fast; use a number"),
        ("lr", "1e-4 1e-4", "1e-4 stands there twice"),
        ("rank", "64..8 x3", "the range ends where it begins, or before; give the lower end first"),
        ("rank", "8..64 x900", "it asks for 900 values; use 2 to 500"),
        ("priority", "101", "use -100 to 100"),
        ("deadline", "2020-01-01T10:00", "that is past"),
        ("deadline", "soon", "choose a day and a time"),
        ("halving_samples", "some", "halving_samples is some; use a whole number"),
    ],
)
def test_a_wrong_value_is_said_of_its_field(field: str, text: str, why: str) -> None:
    several = {"rank": "4, 8"} if field == "halving_samples" else {}
    assert parsed(**several, **{field: text}).problems == {field: why}


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = parsed(rank="0", epochs="inf", seed="1e400", start="at")
    assert found.problems.keys() == {"rank", "epochs", "seed", "at"}
    together = parsed(selection_fraction="0.4", test_fraction="0.3")
    assert "0.70 of the rows are held out" in together.problems["form"]


def test_no_linear_ticked_is_not_the_default() -> None:
    assert "targets" in parsed(targets_shown="yes").problems
    found = parse_new_job(_CHOSEN | {"targets": ["q_proj", "v_proj"]}, _NOW)
    assert found.job().targets == ("q_proj", "v_proj")


@pytest.mark.parametrize(
    ("setting", "text", "values"),
    [
        ("lr", "1e-4", ["1e-4"]),
        ("lr", "1e-4, 2e-4", ["1e-4", "2e-4"]),
        ("lr", "1e-4,2e-4", ["1e-4", "2e-4"]),
        ("lr", "0.001; 0.002", ["0.001", "0.002"]),
        ("lr", "1e-5..1e-3 x3", ["1e-05", "0.0001", "0.001"]),
        ("rank", "8,16,32", ["8", "16", "32"]),
        ("rank", "8..64 x4", ["8", "16", "32", "64"]),
        ("dropout", "0 to 0.2 x 3", ["0", "0.1", "0.2"]),
        ("seed", "1 2 3", ["1", "2", "3"]),
        ("max_seq_len", "128, 256", ["128, 256"]),
    ],
)
def test_several_values_and_ranges(setting: str, text: str, values: list[str]) -> None:
    assert split_values(setting, text) == values


def test_several_values_are_a_sweep() -> None:
    found = parsed(lr="1e-4, 2e-4", rank="8..32 x3", dropout="0.1", halving_samples="64")
    sweep = found.sweep()
    assert sweep.grid == {"lr": [1e-4, 2e-4], "rank": [8, 16, 32]}
    assert sweep.fixed == {"dropout": 0.1}
    assert sweep.halving is not None
    assert sweep.halving.first_samples == 64
    assert {(one.lr, one.rank) for one in found.members()} == {
        (lr, rank) for lr in (1e-4, 2e-4) for rank in (8, 16, 32)
    }
    assert parsed(pick="small:qlora", rank="4, 8").sweep().fixed == {"base_precision": "nf4"}
    assert "rank" in parsed(pick="small:full", rank="4, 8").problems
    assert "500" in parsed(seed="1..500 x400", lr="1e-4, 2e-4").problems["form"]


def test_a_time_may_be_seconds_or_local() -> None:
    found = parsed(start="at", at=str(_NOW + 60), deadline=str(_NOW + 3600))
    assert (found.not_before, found.deadline, found.job().start) == (_NOW + 60, _NOW + 3600, "auto")
    late = parsed(start="at", at=str(_NOW + 60), deadline=str(_NOW + 30))
    assert "before the time" in late.problems["deadline"]
    assert parsed(start="tonight").job().start == "tonight"

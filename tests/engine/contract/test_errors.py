"""The catalogue of errors: complete, consistent, and one line each."""

from collections import defaultdict
from http import HTTPStatus
from itertools import pairwise

import msgspec
import pytest

from slidepack.engine.contract.errors import (
    CATALOGUE,
    EXIT_YIELDED,
    ErrorReport,
    SlidepackError,
    code_of_exit,
)

FAMILIES = ("DATA-", "MODEL-", "GPU-", "RAM-", "DISK-", "RUN-", "DAEMON-", "EXPORT-", "CHAT-")


@pytest.mark.parametrize("code", CATALOGUE)
def test_codes_have_a_family_an_exit_code_and_a_status(code: str) -> None:
    error = SlidepackError(code, "What.", why="why", fix="fix")
    assert code.startswith(FAMILIES)
    assert code == code.upper()
    # 1 and 2 are Python's and the command line's; from 126 on they are the shell's.
    assert 10 <= error.exit_code < 126 or (code, error.exit_code) == ("RUN-INTERRUPTED", 130)
    assert error.exit_code != EXIT_YIELDED
    assert HTTPStatus(error.http_status) >= 400
    assert str(error) == f"{code}: What. why. fix."


def test_an_exit_code_means_one_thing() -> None:
    codes: dict[int, list[str]] = defaultdict(list)
    for code, kind in CATALOGUE.items():
        codes[kind.exit_code].append(code)
    shared = {number: names for number, names in codes.items() if len(names) > 1}
    # A data file that is refused exits with 10, whatever is wrong with it.
    assert list(shared) == [10]
    assert all(name.startswith("DATA-") for name in shared[10])
    assert all(CATALOGUE[name].http_status == 422 for name in shared[10])


def test_a_family_has_its_own_range_of_exit_codes() -> None:
    ranges: dict[str, list[int]] = defaultdict(list)
    for code, kind in CATALOGUE.items():
        if code != "RUN-INTERRUPTED":
            ranges[code.split("-")[0]].append(kind.exit_code)
    ordered = sorted((min(numbers), max(numbers)) for numbers in ranges.values())
    assert all(high < low for (_, high), (low, _) in pairwise(ordered)), ordered


def test_exit_codes_lead_back_to_a_code() -> None:
    assert code_of_exit(10) == "DATA-REFUSED"
    assert code_of_exit(58) == "RUN-NOT-FOUND"
    assert code_of_exit(EXIT_YIELDED) is None
    assert code_of_exit(0) is None


@pytest.mark.parametrize(
    ("what", "why", "fix", "line"),
    [
        ("What", "why", "fix", "What. why. fix."),
        ("What.", "", "", "What."),
        ("What?", " why\n\tand\r\nmore ", "Do it!", "What? why and more. Do it!"),
        ("What.", "a\ud800b\x1b[2J\0", "", "What. a?b?[2J?"),
    ],
)
def test_an_error_is_one_line(what: str, why: str, fix: str, line: str) -> None:
    error = SlidepackError("RUN-FAILED", what, why=why, fix=fix)
    assert error.report.line() == f"RUN-FAILED: {line}"
    assert str(error).splitlines() == [str(error)]


def test_errors_survive_as_data() -> None:
    error = SlidepackError("DISK-FULL", "What.", why="木", fix="fix")
    data = msgspec.json.encode(error.report)
    again = SlidepackError.from_report(msgspec.json.decode(data, type=ErrorReport))
    assert (again.report, again.exit_code) == (error.report, error.exit_code)


def test_an_unknown_code_is_our_own_bug() -> None:
    with pytest.raises(KeyError):
        SlidepackError("NO-SUCH", "What.")

"""The lint beside the judging finds what it finds within it, and a lint that is gone is told."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from support.waiting import wait_until

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.check import judge_file
from slidepack.engine.data.lint import Lint
from slidepack.engine.data.lint_process import LintProcess
from slidepack.engine.data.rows import CompletionRow, TextRow, decode_row, encode_row

_ROWS = (
    CompletionRow(1, "p", "a"),
    CompletionRow(2, "p", "a"),
    CompletionRow(3, "p", "b"),
    CompletionRow(4, "Continue", "the key is sk-" + "aB3" * 16),
    TextRow(5, "User: hi\nAssistant: <image> hello \u2028 there"),
)


def _children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if any("lint_process" in word for word in child.cmdline())
    ]


def test_it_finds_what_the_lint_finds() -> None:
    here = Lint()
    with LintProcess() as there:
        for row in _ROWS:
            here.see(row, encode_row(row))
            there.see(row, encode_row(row))
        found = there.report()
        assert found == here.report()
        assert {issue.code for issue in found.issues} >= {"duplicate-row", "question-twice"}
        assert there.report() == found, "asking again gives the same"
    assert not _children()


def test_it_ends_where_nobody_asks_for_its_report() -> None:
    with pytest.raises(KeyboardInterrupt), LintProcess() as there:
        there.see(_ROWS[0], encode_row(_ROWS[0]))
        (child,) = _children()
        raise KeyboardInterrupt
    assert not child.is_running()


def test_one_that_is_gone_is_a_coded_error() -> None:
    with LintProcess() as there:
        (child,) = _children()
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: child.status() == psutil.STATUS_ZOMBIE)
        with pytest.raises(SlidepackError) as caught:
            for _ in range(100_000):
                there.see(_ROWS[0], encode_row(_ROWS[0]))
            there.report()
    assert caught.value.report.code == "RUN-CRASHED"
    assert "-9" in caught.value.report.why


def test_a_large_file_is_linted_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("w") as file:
        for number in range(5000):
            row = {"prompt": f"question {number % 4990}", "completion": f"answer {'x' * 4000}"}
            file.write(json.dumps(row) + "\n")
    report = judge_file(path, tmp_path / "rows", tmp_path / "rejects")
    lint = Lint()
    for line in (tmp_path / "rows").read_bytes().splitlines(keepends=True):
        lint.see(decode_row(line), line)
    assert report.issues == lint.report().issues
    (twins,) = report.issues
    assert (twins.code, twins.count, twins.line) == ("duplicate-row", 10, 4991)
    assert not _children()

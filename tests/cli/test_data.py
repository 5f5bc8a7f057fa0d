"""`slidepack data check`: one object, one verdict, one exit status."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.data_check import checked, run_check
from support.tiny import write_jsonl

GOOD: dict[str, object] = {"prompt": "p", "completion": "c"}
FIELDS = {
    "family", "rows", "accepted", "repaired", "rejected", "reasons", "ignored_columns", "verdict",
    "issues",
}  # fmt: skip


def _json(*arguments: str) -> tuple[int, dict[str, Any], str]:
    status, report, err = checked(*arguments)
    assert report.keys() >= FIELDS
    for issue in report["issues"]:
        assert issue.keys() >= {"line", "code", "message"}
    return status, report, err


@pytest.mark.parametrize(
    ("rows", "verdict", "status", "code"),
    [
        ([GOOD | {"n": 1}], "ok", 0, None),
        ([GOOD, GOOD], "warn", 0, "duplicate-row"),
        ([GOOD | {"messages": [{"role": "user", "content": "q"}]}], "ask", 10, "DATA-AMBIGUOUS"),
        ([{"prompt": "p", "completion": ""}], "refuse", 10, "DATA-NO-USABLE-ROWS"),
        ([GOOD, {"prompt": "p", "completion": ""}], "refuse", 10, "DATA-TOO-MANY-REJECTED"),
        ([{"chosen": "a", "rejected": "b"}], "refuse", 10, "DATA-PREFERENCE-UNSUPPORTED"),
        ([], "refuse", 10, "DATA-EMPTY"),
    ],
)
def test_every_verdict_is_one_object(
    tmp_path: Path, rows: list[dict[str, object]], verdict: str, status: int, code: str | None
) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    found, report, err = _json(str(path))
    assert (found, report["verdict"], report["rows"]) == (status, verdict, len(rows))
    assert [issue["code"] for issue in report["issues"]][:1] == ([code] if code else [])
    if status:
        assert report["error"]["code"] == code
        assert err.startswith(f"{code}: ")
    else:
        assert (report["error"], err) == (None, "")


def test_a_missing_file_keeps_its_own_status(tmp_path: Path) -> None:
    status, report, err = _json(str(tmp_path / "none.jsonl"))
    assert (status, report["verdict"], report["family"]) == (11, "refuse", None)
    assert err.startswith("DATA-NOT-FOUND: ")


def test_columns_rejects_and_formats_are_the_users_word(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"q": "q1", "a": "a1", "b": "b1"}, {"q": "q2", "a": "a2"}]
    path = str(write_jsonl(tmp_path / "rows.jsonl", rows))
    _, report, _ = _json(path, "--map", "question=q", "--map", "answer=b", "--allow-rejects")
    assert (report["accepted"], report["rejected"], report["ignored_columns"]) == (1, 1, ["a"])
    assert report["columns"] == {"question": "q", "answer": "b"}
    status, report, _ = _json(path, "--map", "question=q", "--map", "answer=b")
    assert (status, report["error"]["code"]) == (10, "DATA-TOO-MANY-REJECTED")
    status, report, _ = _json(path, "--map", "question=zz")
    assert (status, report["error"]["code"]) == (10, "DATA-MAPPING-INVALID")
    assert "a, b, q" in report["error"]["why"]
    status, report, _ = _json(path, "--format", "poem")
    assert (status, report["error"]["code"]) == (10, "DATA-FORMAT-UNKNOWN")
    status, out, _ = run_check(path, "--map", "nothing", "--json")
    assert (status, json.loads(out)["error"]["code"]) == (10, "DATA-MAPPING-INVALID")


def test_people_read_sentences(tmp_path: Path) -> None:
    mail = GOOD | {"completion": "write to jane@corp.org", "id": 5}
    bad: dict[str, object] = {"prompt": "p", "completion": None}
    path = write_jsonl(tmp_path / "rows.jsonl", [GOOD, mail, {"prompt": "r", "completion": 3}, bad])
    status, out, err = run_check(str(path))
    assert (status, err) == (0, "")
    assert "rows.jsonl: 3 of 4 rows can be used, read as completion." in out
    assert "Ignored columns: id" in out
    assert "a number was taken as text: 1" in out
    assert (
        "Warning personal-data: rows that hold what looks like personal data: 1 (first line: 2;"
        in out
    )
    assert "jane" not in out
    assert "no-answer" in out
    assert out.endswith("Verdict: warn.\n")
    status, out, err = run_check(str(tmp_path / "none"))
    assert (status, out) == (11, "Verdict: refuse.\n")
    assert "DATA-NOT-FOUND" in err


def test_text_is_read_as_the_user_says(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_bytes("Caf\u00e9\n\nnext\n".encode("cp1252"))
    _, report, _ = _json(str(path), "--text-mode", "paragraph", "--encoding", "cp1252")
    assert (report["family"], report["accepted"]) == ("text", 2)
    status, report, _ = _json(str(path), "--text-mode", "word")
    assert (status, report["error"]["code"]) == (10, "DATA-FORMAT-UNKNOWN")


def test_rejects_that_are_not_shown_are_counted(tmp_path: Path) -> None:
    empty: dict[str, object] = {"prompt": "p", "completion": ""}
    none: dict[str, object] = {"prompt": "p", "completion": None}
    path = write_jsonl(tmp_path / "rows.jsonl", [GOOD, *[none] * 3, *[empty] * 20])
    _, out, _ = run_check(str(path), "--allow-rejects")
    assert "3 more rejected rows; all by reason: empty-answer 20, no-answer 3." in out
    path = write_jsonl(tmp_path / "rows.jsonl", [GOOD, *[none] * 20])
    assert "more rejected" not in run_check(str(path), "--allow-rejects")[1]

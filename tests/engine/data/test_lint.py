"""What is no fault of a row and still worth a look."""

import json
import random
import time
from pathlib import Path

import pytest

from slidepack.engine.data import twins
from slidepack.engine.data.lint import Lint
from slidepack.engine.data.personal import kinds_in
from slidepack.engine.data.report import Issue
from slidepack.engine.data.rows import (
    ChatRow,
    CompletionRow,
    Row,
    TextRow,
    TokensRow,
    Turn,
    encode_row,
)
from slidepack.engine.data.scripts import script_of
from slidepack.engine.data.twins import overlap


def _chat(line: int, question: str, answer: str, system: str | None = None) -> ChatRow:
    turns = [Turn("user", question, False), Turn("assistant", answer)]
    if system is not None:
        turns.insert(0, Turn("system", system, False))
    return ChatRow(line, tuple(turns))


def _lint(*rows: Row) -> dict[str, Issue]:
    lint = Lint()
    for row in rows:
        lint.see(row, encode_row(row))
    return {issue.code: issue for issue in lint.report().issues}


def test_good_rows_have_no_issue() -> None:
    assert (
        _lint(*[_chat(i, f"What is {i}?", f"A number, {i}.", "Be brief.") for i in range(9)]) == {}
    )
    assert _lint(TextRow(1, "a"), TokensRow(2, (1,), (True,)), CompletionRow(3, "", "b")) == {}


def test_twins_are_counted_with_their_first_lines() -> None:
    rows = [_chat(i, "q", "a") for i in range(1, 7)]
    issues = _lint(*rows, _chat(8, "q", "b"), _chat(9, "q", "b"), _chat(10, "q", "a", "s"))
    assert set(issues) == {"duplicate-row", "question-twice"}
    assert (issues["duplicate-row"].line, issues["duplicate-row"].count) == (2, 6)
    assert "first lines: 2, 3, 4" in issues["duplicate-row"].message
    assert (issues["question-twice"].line, issues["question-twice"].count) == (8, 1)
    assert issues["duplicate-row"].level == "warning"


def test_rows_of_each_kind_have_twins() -> None:
    for row in (
        CompletionRow(1, "p", "c"),
        CompletionRow(1, "", "c"),
        TextRow(1, "t"),
        TokensRow(1, (1, 2), (False, True)),
        ChatRow(1, (Turn("user", " "), Turn("assistant", "a"))),
    ):
        assert set(_lint(row, row)) == {"duplicate-row"}
    assert _lint(CompletionRow(1, "", "a"), CompletionRow(2, "", "b")) == {}
    assert set(_lint(CompletionRow(1, "p", "a"), CompletionRow(2, "p", "b"))) == {"question-twice"}


def test_twins_are_looked_for_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "_MAX_ROWS", 10)
    lint = Lint()
    for line in range(1, 30):
        row = _chat(line, f"q {line}", "a")
        lint.see(row, encode_row(row))
    for question in ("q 3", "q 25"):
        row = _chat(99, question, "a")
        lint.see(row, encode_row(row))
    assert [issue.count for issue in lint.report().issues] == [1]
    told = "Twins were looked for among the first 10 different rows only."
    assert lint.report().notes == (told,)


def test_system_turns_that_say_nothing() -> None:
    issues = _lint(_chat(1, "q", "a", ""), _chat(2, "r", "a", " \u200b"), _chat(3, "s", "a", "x"))
    assert [(issue.code, issue.count) for issue in issues.values()] == [("empty-system", 2)]


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("hello there", "Latin"),
        ("Où est la gare, s'il vous plaît ?", "Latin"),
        ("Как дела?", "Cyrillic"),
        ("Установи numpy через pip install numpy", "Cyrillic"),
        ("日本語で答えてください", "CJK"),
        ("请用 Python 写一个函数", "CJK"),
        ("안녕하세요 여러분", "Hangul"),
        ("مرحبا بك", "Arabic"),
        ("नमस्ते दुनिया", "Indic"),
        ("Καλημέρα κόσμε", "Greek"),
        ("שלום עולם", "Hebrew"),
        ("สวัสดีชาวโลก", "Thai"),
        ("2 + 2 = 4", None),
        ("OK", None),
        ("🙂🙂🙂", None),
        ("", None),
    ],
)
def test_scripts(text: str, script: str | None) -> None:
    assert script_of(text) == script


def test_answers_in_another_script_than_the_question() -> None:
    issues = _lint(
        _chat(1, "Как дела?", "I am fine, thank you."),
        _chat(2, "Tell me about the weather", "今天天气很好,阳光明媚"),
        _chat(3, "Как дела?!", "Хорошо, спасибо"),
        _chat(4, "Сколько будет 2+2?", "4"),
        _chat(5, "naïve café?", "A plain answer."),
    )
    assert [(issue.code, issue.count, issue.line) for issue in issues.values()] == [
        ("mixed-scripts", 2, 1)
    ]


@pytest.mark.parametrize(
    "question", ["Continue.", "go on", "And what about Paris?", "As above, but in red", "继续"]
)
def test_first_questions_that_need_an_earlier_one(question: str) -> None:
    assert set(_lint(_chat(1, question, "好的" if question == "继续" else "yes"))) == {"follow-up"}
    later = (Turn("user", "q", False), Turn("assistant", "a"), Turn("user", question, False))
    assert _lint(ChatRow(1, (*later, Turn("assistant", "b")))) == {}


@pytest.mark.parametrize(
    "question", ["Continue the story: once upon a time", "Why is the sky blue?", "More or less?"]
)
def test_questions_that_only_begin_alike(question: str) -> None:
    assert _lint(_chat(1, question, "yes")) == {}


def test_texts_that_look_like_conversations_and_tags_of_pictures() -> None:
    issues = _lint(
        TextRow(1, "### User: hi\n### Assistant: hello"), _chat(2, "<image>\nWhat?", "a")
    )
    assert set(issues) == {"transcript", "media-tag"}


SECRETS = {
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow",
    "AWS key": "aws AKIA" + "IOSFODNN7EXAMPLE",
    "GitHub token": "ghp_" + "a1B2" * 9,
    "Hugging Face token": "hf_" + "aBcD" * 9,
    "API key": "sk-proj-" + "a1B2" * 9,
    "Slack token": "xoxb-" + "123456789012-abcdef",
    "Google key": "AIza" + "Sy1234567" * 3 + "12345678",
    "GitLab token": "glpat-" + "a1B2c3D4e5F6g7H8i9J0",
    "e-mail address": "write to jane.doe+x@mail.corp.org, please",
    "phone number": "call +44 20 7946 0958 now",
    "card number": "card 4111 1111 1111 1111.",
}


@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_are_named_and_never_shown(kind: str) -> None:
    text = SECRETS[kind]
    for row in (_chat(5, f"x\n{text}", "a"), TextRow(5, text), CompletionRow(5, "p", text)):
        (issue,) = _lint(row).values()
        personal = kind in ("e-mail address", "phone number", "card number")
        assert issue.code == ("personal-data" if personal else "secret")
        assert f"{kind} 1" in issue.message
        assert issue.line == 5
        for word in text.split():
            if len(word) > 7:
                assert word not in issue.message


@pytest.mark.parametrize(
    "text",
    [
        "the task-oriented, risk-averse desk-bound masses of this enterprise organisation",
        "@app.route('/x')\n@pytest.mark.parametrize\ndef f(): ...\n@dataclass",
        "write to someone@example.com",
        "1234567890123456789012345678901234567890",
        "4111 1111 1111 1112",
        "3.14159265358979323846264338327950288",
        "[10, 20, 30, 40, 50, 60, 70, 80, 90]",
        "2024-01-01 12:00:00, 2024-01-02 12:00:00",
        "0000000000000000 and 1111111111111111",
        "AKIA is a prefix, ghp_ and hf_ and sk- and AIza too; -----BEGIN PUBLIC KEY-----",
        "user@localhost and a @ b",
        "978-3-16-148410-0",
    ],
)
def test_harmless_texts_are_left_alone(text: str) -> None:
    assert kinds_in(encode_row(TextRow(1, text))) == set()


def test_a_number_may_begin_a_line() -> None:
    assert kinds_in(encode_row(TextRow(1, "x\n4111 1111 1111 1111"))) == {"card number"}
    assert kinds_in(encode_row(TextRow(1, "n4111 1111 1111 1111"))) == set()


def test_american_numbers() -> None:
    for text in ("\n(415) 555-2671", "415-555-2671", "+1 415 555 2671", "415.555.2671"):
        assert kinds_in(encode_row(TextRow(1, f"call {text}"))) == {"phone number"}


def test_no_text_makes_the_look_slow() -> None:
    rng = random.Random(3)
    for alphabet in ("a", "@", "a@.", "1 ", "1-", "+1(", "-BEGIN ", "sk-_", "a.b@c.", "\\n@a."):
        line = "".join(rng.choices(alphabet, k=200_000)).encode()
        start = time.process_time()
        kinds_in(line)
        assert time.process_time() - start < 2, alphabet


def test_overlap_of_two_files(tmp_path: Path) -> None:
    training, held_out = tmp_path / "a", tmp_path / "b"
    rows = [_chat(i, f"Question {i}", "a") for i in range(1, 50)]
    training.write_bytes(b"".join(map(encode_row, rows)))
    others: list[Row] = [
        _chat(1, "question  7\n", "other"),
        _chat(2, "new", "a"),
        CompletionRow(3, "QUESTION 8", "x"),
        TextRow(4, "question 9"),
        *[_chat(i, f"Question {i}", "a") for i in range(20, 30)],
    ]
    held_out.write_bytes(b"".join(map(encode_row, others)))
    found = overlap(training, held_out)
    assert found.rows == 13
    assert found.first_lines == (1, 3, 4)
    held_out.write_bytes(encode_row(_chat(1, "new", "a")))
    assert overlap(training, held_out).rows == 0


def test_issues_are_plain_data() -> None:
    (issue,) = _lint(_chat(1, "q", "a"), _chat(2, "q", "a")).values()
    assert json.dumps(issue.message)
    assert "\n" not in issue.message


def test_words_for_nothing_are_no_answers() -> None:
    rows = [_chat(1, "a", "Noinput"), _chat(2, "b", "None"), _chat(3, "c", "<nooutput>")]
    issues = _lint(*rows, _chat(4, "d", "There is no output."), CompletionRow(5, "e", "No output."))
    assert (issues["placeholder-answer"].count, issues["placeholder-answer"].line) == (3, 1)

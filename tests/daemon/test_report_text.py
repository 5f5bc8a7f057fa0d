"""The report for others says nothing about who and where."""

import logging

import pytest

from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.doctor.recent_log import RecentLog
from slidepack.daemon.doctor.report_text import Identity, report_text, without_names

_MINE = Identity(
    user="nadja", home="/home/nadja", machine="tower-7", data_dir="/srv/nadjas-data/slidepack"
)


@pytest.mark.parametrize(
    "secret",
    [
        *("nadja", "nadjas", "tower-7", "/home/nadja", "joe"),
        *("hf_AbCdEfGhIjKlMnOp", "s3cr3t-value", "p4ss", "me@example.com", "192.168.1.20"),
        *("deadbeefdeadbeefdeadbeefdeadbeef", "4f1c-9d2e-aaaaaaaaaaaa"),
    ],
)
def test_no_name_and_no_secret_is_left(secret: str) -> None:
    text = """/srv/nadjas-data/slidepack/jobs/3 and /home/nadja/models and /home/joe/x
    C:\\Users\\joe\\models /mnt/c/Users/joe/y /run/media/joe/disk on tower-7: nadja says
    HF_TOKEN=hf_AbCdEfGhIjKlMnOp API_KEY: s3cr3t-value Authorization: Bearer s3cr3t-value
    https://me:p4ss@example.com/x me@example.com 192.168.1.20:7333
    deadbeefdeadbeefdeadbeefdeadbeef GPU-12345678-4f1c-4f1c-9d2e-aaaaaaaaaaaa"""
    assert secret in text
    left = without_names(text, _MINE)
    assert secret not in left
    assert "DATA/jobs/3" in left
    assert "~/models" in left
    assert "GPU-12345678" in left, "cards can still be told apart"


@pytest.mark.parametrize("end", ["", " was read", "\nnext line /x", ", /srv/x", " and D:\\x"])
@pytest.mark.parametrize("name", ["joe", "Joe Doe", "Joe van der Doe", "Doe, Joe (work)", "O'Doe"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/mnt/c/Users/", "/.wslconfig"),
        ("C:\\Users\\", "\\x"),
        ("D:\\\\Users\\\\", "\\\\x"),
        ("C:/Users/", "/My Stuff/x"),
        ("'/mnt/c/Users/", "'"),
        ('"C:\\Users\\', '"'),
    ],
)
def test_no_part_of_a_name_with_blanks_is_left(
    before: str, name: str, after: str, end: str
) -> None:
    text = f"a {before}{name}{after}{end}"
    assert without_names(text, _MINE) == f"a {before}USER{after}{end}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/mnt/c/Users/joe is full", "/mnt/c/Users/USER is full"),
        ("/mnt/c/Users/joe: see /x", "/mnt/c/Users/USER: see /x"),
        ("C:\\Users\\Joe Doe and D:\\x", "C:\\Users\\USER D:\\x"),
        ("/mnt/c/Users/joe, /mnt/c/Users/Joe Doe/x", "/mnt/c/Users/USER /mnt/c/Users/USER/x"),
        (
            "'/mnt/c/Users/joe' and '/mnt/c/Users/doe'",
            "'/mnt/c/Users/USER' and '/mnt/c/Users/USER'",
        ),
        ("/home/joe and /media/joe/My Disk", "/home/USER and /media/USER/My Disk"),
        ("/mnt/c/Users/joe is full\n/x", "/mnt/c/Users/USER is full\n/x"),
    ],
)
def test_what_stands_behind_a_bare_name(text: str, expected: str) -> None:
    assert without_names(text, _MINE) == expected


def test_what_helps_is_kept() -> None:
    text = "Linux 6.18.44, driver 570.86.15, 127.0.0.1:7333, CUDA 12.8, /dev/nvme0n1p2"
    assert without_names(text, _MINE) == text


def test_a_user_with_an_everyday_name_ruins_no_word() -> None:
    root = Identity(user="root", home="/root", machine="linux", data_dir="/root/.local/slidepack")
    assert without_names("the root of linux, /root/x", root) == "the root of linux, ~/x"


def test_the_report_has_facts_findings_and_the_log() -> None:
    found = [
        Finding(level="problem", title="No room.", evidence="1 GiB free.", fix="Delete some."),
        Finding(level="ok", title="Main memory", evidence="32 GiB.", fix=""),
    ]
    text = report_text([("CPU", "8 cores"), ("Software", "")], found, "a line of nadja", _MINE)
    assert text.splitlines()[0] == "CPU: 8 cores"
    assert "Software" not in text
    assert "[PROBLEM] No room.\n  1 GiB free.\n  Delete some." in text
    assert "[ok] Main memory" in text
    assert text.endswith("The daemon's log:\na line of USER\n")


def test_the_log_keeps_the_last_lines_only() -> None:
    log = RecentLog()
    logger = logging.Logger("mine")
    logger.addHandler(log)
    for number in range(1000):
        logger.info("line %d", number)
    logger.debug("not told")
    lines = log.text().splitlines()
    assert len(lines) < 1000
    assert lines[-1].endswith("INFO line 999")

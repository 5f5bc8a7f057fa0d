"""The password: which are taken, and that only a hash of it is anywhere."""

from pathlib import Path

import pytest
from support.stores import open_stores

from slidepack.daemon.passwords import LONGEST, Passwords
from slidepack.daemon.store.documents import Documents
from slidepack.engine.contract.errors import SlidepackError

_GOOD = "correct horse battery"


def _passwords(folder: Path) -> Passwords:
    return Passwords(Documents(open_stores(folder).database))


def test_only_the_password_matches_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    passwords = _passwords(tmp_path)
    assert passwords.changed_at() is None
    assert not passwords.matches("")
    passwords.set(_GOOD, 5.0)
    assert passwords.changed_at() == 5.0
    assert _passwords(tmp_path).matches(_GOOD)
    for wrong in ("", _GOOD[:-1], _GOOD + " ", _GOOD.upper(), "x" * (LONGEST + 1), "\ud800"):
        assert not passwords.matches(wrong)
    for path in tmp_path.iterdir():
        assert _GOOD.encode() not in path.read_bytes()
    passwords.set("another one entirely", 6.0)
    assert not passwords.matches(_GOOD)


def test_a_letter_typed_in_two_ways_is_one(tmp_path: Path) -> None:
    passwords = _passwords(tmp_path)
    passwords.set("caf\u00e9 au lait", 1.0)
    assert passwords.matches("cafe\u0301 au lait")


@pytest.mark.parametrize(
    "weak",
    [
        "",
        "123456789",
        "1234567890",
        "9876543210",
        "abcdefghijkl",
        "aaaaaaaaaaaa",
        "abababababab",
        "password123",
        "Slidepack-2026",
        "PasswordPassword1",
        "x y" * LONGEST,
    ],
)
def test_what_is_tried_first_is_refused(tmp_path: Path, weak: str) -> None:
    passwords = _passwords(tmp_path)
    with pytest.raises(SlidepackError) as refusal:
        passwords.set(weak, 1.0)
    assert refusal.value.report.code == "DAEMON-PASSWORD-INVALID"
    assert not weak or weak not in str(refusal.value)
    assert passwords.changed_at() is None

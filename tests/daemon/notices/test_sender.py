"""Delivery by real processes to real receivers on this machine: what arrives, and what does not."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import psutil
import pytest
from support.notices import Receiver, add_address, deliver, open_notices, receiving
from support.waiting import PATIENCE, wait_until

from slidepack.daemon.notices.contract import Message
from slidepack.daemon.notices.courier import Courier
from slidepack.daemon.notices.notices import Notices
from slidepack.daemon.notices.outbox import DeliveryRecord
from slidepack.daemon.notices.settings import NoticeSettings
from slidepack.daemon.store.database import Database
from slidepack.engine.contract.errors import SlidepackError

_NOW = 1_800_000_000.0
_HANGING = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as served:
        yield served


@pytest.fixture
def notices(tmp_path: Path) -> Iterator[Notices]:
    opened = open_notices(tmp_path, zone=UTC)
    yield opened
    opened.stop(_NOW)


def _last(notices: Notices) -> DeliveryRecord:
    return notices.outbox.recent()[0].deliveries[0]


def test_a_notice_arrives_once(notices: Notices, receiver: Receiver) -> None:
    added = notices.targets.add(receiver.url(), "", _NOW)
    assert (added.name, added.service, added.shown) == ("JSON", "JSON", "json://127.0.0.1/…")
    notices.record("finished", "Job 1 is done", "10 steps, größer 🎉", 1, _NOW)
    deliver(notices, _NOW)
    (came,) = receiver.came
    assert (came["title"], came["message"]) == ("Job 1 is done", "10 steps, größer 🎉")
    assert came["type"] == "success"
    assert _last(notices).state == "sent"
    notices.tick(_NOW + 1e6)
    assert notices.outbox.open_counts() == {"pending": 0, "failed": 0}
    assert len(receiver.came) == 1


def test_every_sign_of_a_text_arrives(notices: Notices, receiver: Receiver) -> None:
    body = 'row 3 is {"x": <noinput> & more}\nsecond line\n- third'
    for kind in ("text", "html"):
        notices.targets.add(receiver.url(f"/?format={kind}"), kind, _NOW)
    notices.record("finished", "Job 1 is done", body, 1, _NOW)
    deliver(notices, _NOW)
    text, page = sorted((str(came["message"]) for came in receiver.came), key=len)
    assert text == body
    # Where HTML is read, a reader sees the same; other tags than line breaks there are none.
    assert re.findall(r"<(\w+)", page) == ["br", "br"]
    seen = unescape(re.sub(r"<br ?/?>\n?", "\n", page)).replace("\u00a0", " ")
    assert seen == body


def test_ticks_do_not_wait_for_a_service(
    tmp_path: Path, notices: Notices, receiver: Receiver
) -> None:
    add_address(tmp_path, receiver.url())
    receiver.hangs = True
    notices.record("finished", "t", "b", None, _NOW)
    times = []
    notices.tick(_NOW)
    wait_until(lambda: receiver.came, what="the service was asked")
    for _ in range(50):
        began = time.monotonic()
        notices.tick(_NOW)
        times.append(time.monotonic() - began)
    # Half of them: one may be held up by another program of this machine.
    assert sorted(times)[25] < 0.2
    assert notices.outbox.open_counts()["pending"] == 1


def test_one_that_refuses_is_tried_again_and_keeps_no_other_waiting(
    tmp_path: Path, notices: Notices, receiver: Receiver
) -> None:
    with receiving() as other:
        add_address(tmp_path, receiver.url(), "bad")
        add_address(tmp_path, other.url(), "good")
        receiver.status = 500
        notices.record("failed", "t", "b", None, _NOW)
        deliver(notices, _NOW)
        bad, good = notices.outbox.recent()[0].deliveries
        assert (bad.state, good.state) == ("pending", "sent")
        assert "500" in bad.error
        receiver.status = 200
        deliver(notices, bad.next_at)
        assert [d.state for d in notices.outbox.recent()[0].deliveries] == ["sent", "sent"]
        assert (receiver.titles, other.titles) == (["t", "t"], ["t"])
        assert [d.error for d in notices.outbox.recent()[0].deliveries] == ["", ""]


@pytest.mark.full
def test_one_that_is_gone_is_told(tmp_path: Path) -> None:
    # The delivery's process has its own start in the time of the service: a busy machine needs it.
    notices = open_notices(tmp_path, courier=Courier(seconds=PATIENCE))
    with receiving() as gone:
        add_address(tmp_path, gone.url())
    notices.record("finished", "t", "b", None, _NOW)
    deliver(notices, _NOW)
    assert _last(notices).state == "pending"
    assert "connection error" in _last(notices).error.casefold()


@pytest.mark.full
def test_one_that_drips_is_given_up(tmp_path: Path, receiver: Receiver) -> None:
    notices = open_notices(tmp_path, courier=Courier(seconds=3))
    add_address(tmp_path, receiver.url())
    receiver.hangs = True
    notices.record("finished", "t", "b", None, _NOW)
    deliver(notices, _NOW)
    assert _last(notices).state == "pending"
    assert _last(notices).error == "The service did not answer within 3 s."


def test_a_process_that_hangs_is_killed_and_one_that_dies_is_told(tmp_path: Path) -> None:
    with receiving() as receiver:
        real = open_notices(tmp_path)
        add_address(tmp_path, receiver.url())
        real.record("finished", "t", "b", None, _NOW)
    hung = open_notices(tmp_path, courier=Courier(_HANGING, seconds=-9))
    deliver(hung, _NOW)
    assert "hung and was killed" in _last(hung).error
    broken = (sys.executable, "-c", "raise SystemExit('no module for json://127.0.0.1/s3cret')")
    deliver(open_notices(tmp_path, courier=Courier(broken)), _NOW + 60)
    assert "exit code 1" in _last(real).error
    deliver(open_notices(tmp_path, courier=Courier(("/no/such/program",))), _NOW + 600)
    assert "could not be started" in _last(real).error
    assert _last(real).state == "pending", "a day is not over"


def test_each_of_many_messages_has_its_own_answer() -> None:
    delivery = Courier().start(
        [
            Message(key=key, url="json://127.0.0.1:9/" if key % 2 else "nosuch://x")
            for key in range(40)
        ],
        check_only=True,
    )
    assert delivery.wait(PATIENCE)
    answers = delivery.answers()
    assert [answers[key].ok for key in range(40)] == [bool(key % 2) for key in range(40)]
    assert {answer.error for answer in answers.values() if not answer.ok} == {
        "Unparseable URL nosuch://x"
    }


def test_what_waited_comes_as_one_message(
    tmp_path: Path, notices: Notices, receiver: Receiver
) -> None:
    notices.choose(NoticeSettings(quiet_from="23:00", quiet_to="07:00", digest_at=""))
    add_address(tmp_path, receiver.url())
    night = datetime(2026, 11, 30, 23, 30, tzinfo=UTC).timestamp()
    for number in (1, 2, 3):
        notices.record("finished", f"Job {number} is done", "fine", number, night)
    for hour in range(7):
        notices.tick(night + hour * 3600)
        assert notices.sender.child_pid is None
    # A test is not held: somebody is there who asked for it.
    assert notices.test(1, night).ok
    morning = datetime(2026, 12, 1, 7, 0, tzinfo=UTC).timestamp()
    deliver(notices, morning)
    test, together = receiver.came
    assert test["title"] == "Slidepack: a test"
    assert together["title"] == "Slidepack: 3 notices"
    assert [line for line in together["message"].splitlines() if line] == [
        *("Job 1 is done", "fine", "Job 2 is done", "fine", "Job 3 is done", "fine"),
    ]


def test_a_notice_without_a_body_is_sent_too(
    tmp_path: Path, notices: Notices, receiver: Receiver
) -> None:
    add_address(tmp_path, receiver.url())
    notices.record("failed", "only a title", "", None, _NOW)
    deliver(notices, _NOW)
    assert [message["message"] for message in receiver.came] == ["only a title"]


def test_what_is_not_wanted_is_not_sent(
    tmp_path: Path, notices: Notices, receiver: Receiver
) -> None:
    notices.choose(NoticeSettings(sends=("failed",), digest_at=""))
    add_address(tmp_path, receiver.url())
    notices.record("finished", "unwanted", "b", None, _NOW)
    notices.record("failed", "wanted", "b", None, _NOW)
    deliver(notices, _NOW)
    assert receiver.titles == ["wanted"]


def test_a_removed_address_gets_nothing_more(
    tmp_path: Path, notices: Notices, receiver: Receiver
) -> None:
    added = add_address(tmp_path, receiver.url())
    notices.record("finished", "t", "b", None, _NOW)
    notices.targets.remove(added)
    notices.tick(_NOW)
    assert notices.sender.child_pid is None
    assert (_last(notices).state, _last(notices).error) == ("dropped", "Its address was removed.")
    for act in (notices.targets.remove, lambda number: notices.test(number, _NOW)):
        with pytest.raises(SlidepackError, match="no notification address 1"):
            act(added)


def test_a_test_answers_with_the_outcome_and_is_listed(
    tmp_path: Path, notices: Notices, receiver: Receiver
) -> None:
    added = add_address(tmp_path, receiver.url())
    assert notices.test(added, _NOW).ok
    receiver.status = 403
    trial = notices.test(added, _NOW)
    assert not trial.ok
    assert "403" in trial.error
    assert [n.deliveries[0].state for n in notices.outbox.recent()] == ["failed", "sent"]
    notices.tick(_NOW + 3600)
    assert notices.sender.child_pid is None, "a test is made once"


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("s3cretword", "scheme"),
        ("nosuchservice://s3cretword", "nosuchservice"),
        ("discord://s3cretword", "Discord"),
        ("json://", "JSON"),
        ("json://h/s3cretword\nb", "control"),
        ("json://h/" + "s3cretword" * 200, "2,009"),
    ],
)
def test_an_address_that_cannot_work_is_refused_without_its_secret(
    notices: Notices, url: str, word: str
) -> None:
    with pytest.raises(SlidepackError) as caught:
        notices.targets.add(url, "", _NOW)
    assert caught.value.report.code == "DAEMON-NOTIFIER-INVALID"
    assert word.casefold() in caught.value.report.why.casefold()
    assert "s3cret" not in str(caught.value)
    assert notices.targets.records() == []


def test_a_known_address_is_renamed_and_there_is_a_limit(notices: Notices, tmp_path: Path) -> None:
    url = "json://127.0.0.1:9/s3cret"
    first = notices.targets.add(url, "", _NOW)
    again = notices.targets.add(f" {url} ", "my phone", _NOW + 1)
    assert (again.id, again.name, again.created_at) == (first.id, "my phone", _NOW)
    assert notices.targets.add(url, "", _NOW).name == "my phone"
    database = Database(tmp_path / "slidepack.db")
    for number in range(19):
        database.execute(
            "INSERT INTO notifiers (name, service, shown, url, created_at) "
            "VALUES ('n', 's', 'x', ?, 0)",
            f"json://127.0.0.1/{number}",
        )
    with pytest.raises(SlidepackError, match="too many"):
        notices.targets.add("json://127.0.0.1:9/one-more", "", _NOW)
    assert notices.targets.add(url, "still", _NOW).name == "still"


def test_the_secret_is_in_no_argument_environment_log_or_text(
    notices: Notices, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status, receiver.holds = 500, True
    added = notices.targets.add(receiver.url("/s3cretpath?+X-Key=s3cretkey"), "", _NOW)
    notices.record("finished", "t", "b", None, _NOW)
    notices.tick(_NOW)
    wait_until(lambda: receiver.came, what="the service was asked")
    assert notices.sender.child_pid is not None
    child = psutil.Process(notices.sender.child_pid)
    assert "slidepack.daemon.notices.deliver" in child.cmdline()
    for text in (str(child.cmdline()), str(child.environ()), repr(notices.outbox.due(_NOW + 60))):
        assert "s3cret" not in text
    receiver.let_go.set()
    deliver(notices, _NOW)
    told = notices.outbox.recent()
    for text in (str(told), str(added), str(notices.targets.records()), caplog.text):
        assert "s3cret" not in text
    assert "did not reach address 1" in caplog.text
    for path in tmp_path.glob("slidepack.db*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    notices.targets.remove(added.id)
    Database(tmp_path / "slidepack.db").query("PRAGMA wal_checkpoint(TRUNCATE)")
    assert b"s3cret" not in (tmp_path / "slidepack.db").read_bytes()


@pytest.mark.full
def test_stopping_stores_what_came_and_ends_what_hangs(tmp_path: Path, receiver: Receiver) -> None:
    notices = open_notices(tmp_path)
    add_address(tmp_path, receiver.url())
    notices.record("finished", "t", "b", None, _NOW)
    notices.tick(_NOW)
    assert notices.sender.child_pid is not None
    child = psutil.Process(notices.sender.child_pid)
    # A stop waits for a few seconds only, however busy the machine is.
    wait_until(lambda: child.status() == psutil.STATUS_ZOMBIE, what="it was sent")
    notices.stop(_NOW)
    assert _last(notices).state == "sent"
    notices.record("finished", "later", "b", None, _NOW)
    notices.tick(_NOW)
    assert notices.sender.child_pid is None, "no other is started"
    # A daemon of its own, whose delivery hangs.
    again = open_notices(tmp_path, courier=Courier(_HANGING, seconds=60))
    again.tick(_NOW)
    pid = again.sender.child_pid
    assert pid is not None
    again.stop(_NOW)
    assert not psutil.pid_exists(pid)
    assert _last(again).state == "pending"


def test_the_daemon_never_loads_what_delivers() -> None:
    code = (
        "import sys, slidepack.web.server; "
        "sys.exit('apprise' in sys.modules or 'slidepack.daemon.notices.deliver' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


_DAEMON = """
import sys, time
from pathlib import Path
from support.notices import open_notices
notices = open_notices(Path(sys.argv[1]))
if sys.argv[2] == "record":
    notices.record("finished", "from before", "b", None, float(sys.argv[3]))
print("recorded", flush=True)
while sys.argv[2] == "tick":
    notices.tick(float(sys.argv[3]))
    time.sleep(0.02)
time.sleep(600)
"""


def _daemon(home: Path, what: str, now: float) -> "subprocess.Popen[str]":
    tests = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", _DAEMON, str(home), what, str(now)],
        env=os.environ | {"PYTHONPATH": str(tests)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "recorded\n"
    return process


def _kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_daemon_killed_at_any_point_loses_no_notice(tmp_path: Path, receiver: Receiver) -> None:
    notices = open_notices(tmp_path)
    add_address(tmp_path, receiver.url())
    _kill(_daemon(tmp_path, "record", _NOW))
    assert [due.title for due in notices.outbox.due(_NOW)] == ["from before"]
    # The next one is killed after the service has it and before the answer is stored: it comes a
    # second time, which is the price of never losing one.
    receiver.hangs = True
    second = _daemon(tmp_path, "tick", _NOW)
    wait_until(lambda: receiver.came, what="it was sent")
    _kill(second)
    receiver.let_go.set()
    assert _last(notices).state == "pending"
    receiver.hangs = False
    notices.tick(_NOW + 30)
    assert notices.sender.child_pid is None, "the dead daemon's process may still be at it"
    deliver(notices, _NOW + 60)
    assert _last(notices).state == "sent"
    assert receiver.titles == ["from before", "from before"]

"""The schedule's forms against a real daemon, as a browser without scripts sends them."""

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.daemons import DaemonProcess
from support.waiting import PATIENCE


class _Visitor:
    """A browser that is logged in and runs no script."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self.http = httpx.Client(base_url=daemon.address.url, trust_env=False, timeout=PATIENCE)
        self.http.get(daemon.api("POST", "/login-links")["url"])
        self.csrf = self.page().partition('data-csrf="')[2].partition('"')[0]

    def page(self, query: str = "") -> str:
        answer = self.http.get(f"/schedule{query}")
        assert answer.status_code == 200
        return answer.text

    def send(self, form: str, **fields: str) -> httpx.Response:
        return self.http.post(f"/schedule/{form}?csrf={self.csrf}", data=fields)

    def policy(self) -> Any:
        return self.daemon.api("GET", "/policy")

    def state(self) -> Any:
        return self.daemon.api("GET", "/policy/state")


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Visitor]:
    with DaemonProcess(tmp_path_factory.mktemp("schedule") / "home", device="cpu") as daemon:
        yield _Visitor(daemon)


_HOURS = {"mode": "windows", "time_zone": "Europe/Berlin", "finish_within_minutes": "30"}
_NIGHT = {"day-0-mon": "on", "day-0-tue": "on", "start-0": "23:00", "end-0": "07:00"}


def _errors(text: str) -> list[str]:
    return re.findall(r'class="wrong"[^>]*>(.*?)<', text)


@pytest.mark.full
def test_hours_are_stored_at_once_and_shown_again(visitor: _Visitor) -> None:
    noon = {"day-4-sun": "on", "start-4": "12:15", "end-4": "00:00"}
    answer = visitor.send("hours", **_HOURS, **_NIGHT, **noon)
    assert (answer.status_code, answer.headers["location"]) == (303, "/schedule")
    policy = visitor.policy()
    assert policy["windows"] == [
        {"days": ["mon", "tue"], "start": "23:00", "end": "07:00"},
        {"days": ["sun"], "start": "12:15", "end": "00:00"},
    ]
    assert (policy["time_zone"], policy["finish_within_minutes"]) == ("Europe/Berlin", 30)
    text = visitor.page()
    assert re.findall(r'name="start-\d" data-field="start" value="(.*?)"', text) == [
        "23:00",
        "12:15",
    ]
    assert "by the clock of Europe/Berlin" in text
    openings = visitor.daemon.api("GET", "/policy/openings?most=4")
    assert len(openings) == 4
    assert all(one["begin"] < one["end"] for one in openings)
    assert text.count("<li>") >= 3


def test_never_keeps_the_hours_and_any_time_forgets_them(visitor: _Visitor) -> None:
    visitor.send("hours", **_HOURS | {"mode": "never"}, **_NIGHT)
    assert (visitor.policy()["closed"], len(visitor.policy()["windows"])) == (True, 1)
    assert not visitor.state()["may_run"]
    assert "No hours are open." in visitor.page()
    visitor.send("hours", **_HOURS | {"mode": "any"}, **_NIGHT)
    assert (visitor.policy()["closed"], visitor.policy()["windows"]) == (False, [])
    assert visitor.state()["may_run"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"start-0": "25:00"}, "Start is &#39;25:00&#39;; use a time from 00:00 to 23:59."),
        ({"end-0": ""}, "Say when it ends."),
        ({"day-0-mon": "", "day-0-tue": ""}, "Tick at least one day."),
        ({"time_zone": "Europe/Atlantis"}, "does not know"),
        ({"finish_within_minutes": "soon"}, "soon is no number."),
        ({"finish_within_minutes": "9999"}, "It is 9999; use 0 to 1440."),
        ({"start-0": "", "end-0": "", "day-0-mon": "", "day-0-tue": ""}, "Mark hours"),
    ],
)
def test_wrong_hours_are_told_beside_the_field_and_nothing_is_stored(
    visitor: _Visitor, changes: dict[str, str], told: str
) -> None:
    before = visitor.policy()
    answer = visitor.send("hours", **{**_HOURS, **_NIGHT, **changes})
    assert answer.status_code == 200
    assert any(told in error for error in _errors(answer.text)), _errors(answer.text)
    assert 'aria-invalid="true"' in answer.text or "Mark hours" in told
    assert "Not saved" in answer.text
    assert visitor.policy() == before


def test_presets_and_rows_are_filled_in_and_stored_with_save_only(visitor: _Visitor) -> None:
    before = visitor.policy()
    text = visitor.send("hours", **_HOURS, preset="nights").text
    assert 'value="23:00"' in text
    assert text.count(" checked") == 7 + 1
    text = visitor.send("hours", **_HOURS, **_NIGHT, add="row").text
    assert text.count('<fieldset class="hours-row"') == 2 + 1  # and the template for scripts
    text = visitor.send("hours", **_HOURS, **_NIGHT, remove="0").text
    assert text.count('<fieldset class="hours-row"') == 0 + 1
    assert visitor.policy() == before


def test_programs_are_listed_added_and_removed(visitor: _Visitor) -> None:
    assert visitor.send("programs", add="blend*").status_code == 303
    assert visitor.send("programs", add="cmd:*farm*").status_code == 303
    assert visitor.policy()["exclusive_apps"] == ["blend*", "cmd:*farm*"]
    refused = visitor.send("programs", add="*")
    assert "would match every program" in _errors(refused.text)[0]
    visitor.send("programs", remove="blend*")
    assert visitor.policy()["exclusive_apps"] == ["cmd:*farm*"]
    visitor.send("programs", games="off")
    assert visitor.policy()["detect_games"] is False
    assert "Nothing of that name runs now." in visitor.page("?search=no-such-program-anywhere")
    found = visitor.daemon.api("GET", "/policy/programs")
    assert all({"name", "pattern", "gpu", "window"} <= set(one) for one in found)


def test_limits_are_shown_in_the_pages_units_and_stored_in_the_policys(visitor: _Visitor) -> None:
    answer = visitor.send(
        "limits",
        reserve_vram_mb="0.3",
        foreign_vram_mb="2,5",
        resume_after_seconds="1.5",
        max_gpu_celsius="80",
        ignored_processes="Xorg\n\n  kwin* \n",
    )
    assert answer.status_code == 303
    policy = visitor.policy()
    assert (policy["reserve_vram_mb"], policy["foreign_vram_mb"]) == (300, 2500)
    assert (policy["resume_after_seconds"], policy["max_gpu_celsius"]) == (90, 80)
    assert policy["ignored_processes"] == ["Xorg", "kwin*"]
    text = visitor.page()
    for name, value in (("reserve_vram_mb", "0.3"), ("resume_after_seconds", "1.5")):
        assert re.search(rf'name="{name}"[^>]* value="{re.escape(value)}"', text), name


def test_of_several_limits_all_are_stored_or_none(visitor: _Visitor) -> None:
    before = visitor.policy()
    answer = visitor.send(
        "limits", reserve_vram_mb="1", max_gpu_celsius="10", cool_by_celsius="warm"
    )
    assert _errors(answer.text) == ["It is 10; use 50 to 120.", "warm is no number."]
    assert 'value="warm"' in answer.text, "what was typed is still there"
    assert visitor.policy() == before


def test_the_gpu_is_given_back_for_a_while(visitor: _Visitor) -> None:
    # Hours ahead in whatever zone the policy has.
    ahead = time.strftime("%H:%M", time.localtime(time.time() + 12 * 3600))
    for fields, least, most in (
        ({"for": "hour"}, 3600, 3600),
        ({"for": "clock", "until": ahead}, 3600, 25 * 3600),
    ):
        before = time.time()
        assert visitor.send("pause", **fields).status_code == 303
        until = visitor.state()["hold"]["until"]
        assert before + least <= until <= time.time() + most
    visitor.send("pause", **{"for": "resume"})
    assert visitor.state()["hold"]["until"] is None
    assert "Training may run now: no." in visitor.page()
    refused = visitor.send("pause", **{"for": "clock", "until": "late"})
    assert refused.status_code == 400
    assert "is no time" in refused.text
    visitor.send("resume")
    assert visitor.state()["hold"] is None


def test_a_form_without_the_sessions_token_changes_nothing(visitor: _Visitor) -> None:
    before = visitor.policy()
    for token in ("", "x" * 64):
        answer = visitor.http.post(f"/schedule/limits?csrf={token}", data={"reserve_vram_mb": "9"})
        assert answer.status_code == 403
    assert visitor.policy() == before


def test_what_happens_at_the_queues_end_is_chosen_among_what_there_is(visitor: _Visitor) -> None:
    assert visitor.send("power", action="nothing").status_code == 303
    assert visitor.send("power", action="explode").status_code == 400
    # There is no logind here that could: the reason is told, and nothing is armed.
    refused = visitor.send("power", action="suspend")
    if refused.status_code != 303:
        assert "DAEMON-" in refused.text
        assert visitor.daemon.api("GET", "/queue/end")["action"] == "nothing"

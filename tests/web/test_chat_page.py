"""The chat's page: who can be ticked, and names that are text."""

from pathlib import Path

import msgspec
import pytest
from support.stores import Stores, open_stores, plain_spec

from slidepack.web.app import template_engine
from slidepack.web.contexts import ChatPage, ChatVoice


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return open_stores(tmp_path)


def _page(stores: Stores, *, whole: bool = False) -> str:
    job = stores.jobs.add(msgspec.structs.replace(plain_spec(), name="<job>"), 0.0)
    voices = [
        ChatVoice(name="base", title="<base>", job_id=None, ticked=True),
        ChatVoice(name="job-2", title="<other>", job_id=2, ticked=False),
    ]
    page = ChatPage(csrf_token="t", job=job, whole=whole, voices=voices, idle_minutes=10.0)
    return template_engine().get_template("chat.html").render(page=page)


def test_names_are_shown_as_text(stores: Stores) -> None:
    html = _page(stores)
    for name in ("<job>", "<base>", "<other>"):
        assert name not in html
    assert "10 minutes after its last answer" in html


def test_who_is_ticked_is_checked_and_jobs_carry_their_id(stores: Stores) -> None:
    base, other = [line for line in _page(stores).split("\n") if 'name="voice"' in line]
    assert "checked" in base
    assert "data-job" not in base
    assert "checked" not in other
    assert 'data-job="2"' in other


def test_a_whole_model_says_why_its_base_is_not_there(stores: Stores) -> None:
    assert "every weight" in _page(stores, whole=True)
    assert "every weight" not in _page(stores)

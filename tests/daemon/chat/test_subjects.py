"""Whom a chat is with: what belongs together, and what is refused."""

from pathlib import Path

import pytest
from support.chat_shop import ChatShop

from slidepack.daemon.chat.contract import SessionRequest
from slidepack.daemon.chat.subjects import Subject, Subjects
from slidepack.engine.contract.errors import SlidepackError


def _of(shop: ChatShop, **request: object) -> Subject:
    subjects = Subjects(shop.stores.jobs, shop.catalogue)
    return subjects.of(SessionRequest(**request))  # type: ignore[arg-type]


def _refused(shop: ChatShop, **request: object) -> SlidepackError:
    with pytest.raises(SlidepackError) as caught:
        _of(shop, **request)
    return caught.value


def test_jobs_over_one_base_share_a_chat(shop: ChatShop, model: Path, tuned: Path) -> None:
    base = shop.add_model(model)
    first, second = shop.add_job(base, tuned), shop.add_job(base, tuned)
    found = _of(shop, jobs=(first, second))
    assert [adapter.name for adapter in found.adapters] == [f"job-{first}", f"job-{second}"]
    assert (found.model, found.bare, found.content_hash) == (base, "base", "")
    assert found.adapter_params > 0


def test_jobs_over_two_bases_do_not(shop: ChatShop, model: Path, tuned: Path) -> None:
    jobs = [shop.add_job(shop.add_model(model, name), tuned) for name in ("one", "two")]
    error = _refused(shop, jobs=tuple(jobs))
    assert error.report.code == "CHAT-REQUEST-INVALID"
    assert "one, two" in error.report.why


def test_a_whole_model_is_alone(shop: ChatShop, model: Path, tuned: Path) -> None:
    base = shop.add_model(model)
    whole, adapter = shop.add_job(base, model, full=True), shop.add_job(base, tuned)
    found = _of(shop, jobs=(whole,))
    assert (found.bare, found.model, found.adapters) == (f"job-{whole}", f"job-{whole}", ())
    assert _refused(shop, jobs=(whole, adapter)).report.code == "CHAT-REQUEST-INVALID"


def test_a_job_over_other_content_is_refused(shop: ChatShop, model: Path, tuned: Path) -> None:
    base = shop.add_model(model)
    job = shop.add_job(base, tuned)
    shop.stores.database.execute("UPDATE models SET content_hash = 'other' WHERE id = ?", base)
    assert _refused(shop, jobs=(job,)).report.code == "MODEL-CHANGED"


def test_files_that_were_touched_are_for_the_process_to_compare(
    shop: ChatShop, model: Path
) -> None:
    base = shop.add_model(model)
    shop.stores.database.execute("UPDATE models SET stamp = 'older' WHERE id = ?", base)
    assert _of(shop, model=base).content_hash == shop.catalogue.model(base).content_hash


@pytest.mark.parametrize("state", ["queued", "running", "failed"])
def test_what_is_not_completed_has_nothing_to_say(
    shop: ChatShop, model: Path, tuned: Path, state: str
) -> None:
    job = shop.add_job(shop.add_model(model), tuned, state=state)
    error = _refused(shop, jobs=(job,))
    assert (error.report.code, error.report.why) == ("RUN-NO-RESULT", f"it is {state}")


def test_an_adapter_that_was_deleted_is_told(shop: ChatShop, model: Path, tuned: Path) -> None:
    job = shop.add_job(shop.add_model(model), tuned)
    (shop.folder / f"result-{job}" / "adapter" / "adapter_model.safetensors").unlink()
    assert _refused(shop, jobs=(job,)).report.code == "RUN-NO-RESULT"


def test_an_unknown_job_and_an_unknown_model_are_told(shop: ChatShop) -> None:
    assert _refused(shop, jobs=(9,)).report.code == "RUN-NOT-FOUND"
    assert _refused(shop, model="nope").report.code == "MODEL-NOT-FOUND"

"""A model that is away is waited for, one that was touched is compared, a changed one is told."""

import shutil
from pathlib import Path

import msgspec
import pytest
from support.stores import Stores, plain_spec
from support.waiting import wait_until

from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.supervisor.model_check import ModelCheck
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.importer.fingerprint import content_hash, quick_stamp


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def check(stores: Stores, model: Path) -> ModelCheck:
    stores.database.execute(
        "INSERT INTO models (id, name, kind, source, state, path, content_hash, stamp, created_at) "
        "VALUES ('m', 'm', 'folder', ?, 'ready', ?, ?, ?, 1.0)",
        str(model),
        str(model),
        content_hash(model),
        quick_stamp(model),
    )
    return ModelCheck(Catalogue(stores.database))


@pytest.fixture
def spec(model: Path) -> JobSpec:
    base = msgspec.structs.replace(
        plain_spec().base, model_id="m", path=str(model), content_hash=content_hash(model)
    )
    return msgspec.structs.replace(plain_spec(), base=base)


def test_a_drive_that_is_not_there_yet_is_waited_for(
    check: ModelCheck, spec: JobSpec, model: Path
) -> None:
    away = model.rename(model.with_name("away"))
    assert str(model) in check.why_wait(spec)
    away.rename(model)
    wait_until(lambda: check.why_wait(spec) == "")


def test_files_that_were_only_touched_are_compared_once(
    check: ModelCheck, spec: JobSpec, model: Path, stores: Stores
) -> None:
    again = model.with_name("copy")
    shutil.copytree(model, again)
    shutil.rmtree(model)
    again.rename(model)
    (model / "config.json").touch()
    catalogue = Catalogue(stores.database)
    assert catalogue.model("m").stamp != quick_stamp(model)
    # A comparison so small may be done before it is first asked for.
    first = check.why_wait(spec)
    assert first in ("", "waits: the model's files were touched, and are compared")
    wait_until(lambda: check.why_wait(spec) == "")
    assert catalogue.model("m").stamp == quick_stamp(model), "the new times are remembered"


def test_another_content_is_a_coded_error(check: ModelCheck, spec: JobSpec, model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"others!")

    def refused() -> str:
        try:
            check.why_wait(spec)
        except SlidepackError as error:
            return error.report.code
        return ""

    assert wait_until(refused) == "MODEL-CHANGED"


def test_a_job_of_another_version_of_the_model_is_refused(check: ModelCheck, spec: JobSpec) -> None:
    base = msgspec.structs.replace(spec.base, content_hash="of-another-version")
    with pytest.raises(SlidepackError) as caught:
        check.why_wait(msgspec.structs.replace(spec, base=base))
    assert caught.value.report.code == "MODEL-CHANGED"

"""Files on their way in: who may send one, for how long, and what of it stays on the disk."""

import asyncio
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from slidepack.daemon.drafts import AnnouncedFile, Draft, Drafts
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.settings import Settings
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.database import Database
from slidepack.daemon.uploads import Uploads
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.report import CheckOptions

_BLOCK = 1 << 20
_MANY = 40 * _BLOCK


def _content(size: int) -> bytes:
    """Return bytes of which no part is like another, so that a wrong offset shows."""
    words = (number.to_bytes(8, "little") for number in itertools.count())
    return b"".join(itertools.islice(words, size // 8 + 1))[:size]


async def _blocks(data: bytes, then: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    """Yield it piece by piece; with `then`, the connection is silent afterwards until it is set."""
    for start in range(0, len(data), _BLOCK):
        await asyncio.sleep(0)
        yield data[start : start + _BLOCK]
    if then is not None:
        await then.wait()


def _draft(drafts: Drafts, size: int | None) -> Draft:
    return drafts.create([AnnouncedFile(name="x.jsonl", bytes=size)])


def _received(drafts: Drafts, draft: Draft) -> int:
    return drafts.get(draft.id).files[0].received


def test_a_newer_connection_takes_over_from_one_that_vanished(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path, 0)
    data = _content(_MANY)
    draft = _draft(drafts, len(data))

    async def told() -> tuple[str, int]:
        never = asyncio.Event()
        # Ten blocks of which two stay in memory; then nothing, as after a cut without a word.
        begun = _blocks(data[: 10 * _BLOCK], never)
        vanished = asyncio.create_task(drafts.receive(draft.id, 0, 0, begun))
        while _received(drafts, draft) < 8 * _BLOCK:
            await asyncio.sleep(0)
        # Who begins at a wrong place ends nobody.
        with pytest.raises(SlidepackError, match="DATA-UPLOAD-OFFSET"):
            await drafts.receive(draft.id, 0, 3, _blocks(data[3:]))
        assert not vanished.done()
        offset = _received(drafts, draft)
        found = await drafts.receive(draft.id, 0, offset, _blocks(data[offset:]))
        with pytest.raises(SlidepackError) as ended:
            await vanished
        return ended.value.report.code, found.files[0].received

    assert asyncio.run(asyncio.wait_for(told(), 60)) == ("DATA-IN-USE", len(data))
    ((_, path),) = drafts.paths(draft.id)
    assert path.read_bytes() == data


def test_whoever_takes_over_in_the_middle_of_writing_nothing_is_written_twice(
    tmp_path: Path,
) -> None:
    drafts = Drafts(tmp_path, 0)
    data = _content(_MANY)
    draft = _draft(drafts, len(data))

    async def send() -> None:
        offset = _received(drafts, draft)
        await drafts.receive(draft.id, 0, offset, _blocks(data[offset:]))

    async def overtake() -> list[BaseException | None]:
        senders = [asyncio.create_task(send())]
        for least in range(4 * _BLOCK, _MANY, 8 * _BLOCK):
            while _received(drafts, draft) < least and not senders[-1].done():
                await asyncio.sleep(0)
            senders += [asyncio.create_task(send()), asyncio.create_task(send())]
        ended = await asyncio.gather(*senders, return_exceptions=True)
        await drafts.receive(draft.id, 0, at := _received(drafts, draft), _blocks(data[at:]))
        return ended

    ended = asyncio.run(asyncio.wait_for(overtake(), 60))
    codes = {error.report.code for error in ended if isinstance(error, SlidepackError)}
    assert "DATA-IN-USE" in codes
    assert codes <= {"DATA-IN-USE", "DATA-UPLOAD-OFFSET"}
    ((_, path),) = drafts.paths(draft.id)
    assert path.read_bytes() == data


def test_a_silent_connection_ends_and_what_it_sent_is_kept(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path, 0, idle_seconds=0.5)
    draft = _draft(drafts, 9)

    async def silent() -> None:
        await drafts.receive(draft.id, 0, 0, _blocks(b"some", asyncio.Event()))

    with pytest.raises(SlidepackError, match="DATA-UPLOAD-CUT") as ended:
        asyncio.run(asyncio.wait_for(silent(), 30))
    assert "nothing came for 0.5 seconds" in ended.value.report.why
    assert _received(drafts, draft) == 4
    # Nobody has gone on with it for days: nothing holds it any more.
    drafts.expire(2**40)
    assert not drafts.folder(draft.id).exists()


def test_a_draft_that_is_being_made_is_not_cleaned_up(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path, 0)
    # So it looks between its folder and its record.
    making = drafts.folder("0123456789abcdef")
    making.mkdir()
    now = making.stat().st_mtime
    drafts.expire(now)
    assert making.is_dir()
    # Its daemon was killed just then.
    drafts.expire(now + 120)
    assert not making.exists()


def test_a_program_that_pipes_its_output_may_take_its_time(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path, 0, idle_seconds=0.0)
    draft = _draft(drafts, None)
    asyncio.run(drafts.receive(draft.id, 0, 0, _blocks(b"thought about")))
    assert _received(drafts, draft) == 13


@pytest.mark.parametrize("size", [3, 9 * _BLOCK])
def test_a_piece_without_room_takes_none(tmp_path: Path, size: int) -> None:
    draft = _draft(Drafts(tmp_path, 0), size)
    full = Drafts(tmp_path, 2 * shutil.disk_usage(tmp_path).total)
    for _ in range(2):
        with pytest.raises(SlidepackError, match="DISK-FULL"):
            asyncio.run(full.receive(draft.id, 0, 0, _blocks(_content(size))))
        assert _received(full, draft) == 0


def _uploads(home: Path) -> tuple[Uploads, Catalogue, Database]:
    paths = DataPaths(home)
    paths.create()
    database = Database(paths.database)
    catalogue = Catalogue(database)
    return Uploads(catalogue, paths, Settings(disk_floor_gb=0)), catalogue, database


def _filled(uploads: Uploads, *words: str) -> Draft:
    bodies = [json.dumps({"prompt": word, "completion": "yes"}).encode() for word in words]
    draft = uploads.drafts.create(
        [
            AnnouncedFile(name=f"{word}.jsonl", bytes=len(body))
            for word, body in zip(words, bodies, strict=True)
        ]
    )
    for number, body in enumerate(bodies):
        asyncio.run(uploads.drafts.receive(draft.id, number, 0, _blocks(body)))
    return draft


@pytest.mark.parametrize("words", [("one",), ("first", "second")])
def test_an_upload_outlives_a_dataset_that_could_not_be_written(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    uploads, catalogue, database = _uploads(tmp_path / "home")
    draft = _filled(uploads, *words)
    before = [path.read_bytes() for _, path in uploads.drafts.paths(draft.id)]
    # The last step fails, as on a disk that has become full.
    database.execute(
        "CREATE TRIGGER refuse BEFORE UPDATE ON datasets BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(Exception, match="no"):
        uploads.check(draft.id, CheckOptions())
    assert [path.read_bytes() for _, path in uploads.drafts.paths(draft.id)] == before
    assert uploads.drafts.get(draft.id).missing is None
    assert (catalogue.datasets(), catalogue.incomplete_datasets()) == ([], [])
    assert list((tmp_path / "home" / "datasets").iterdir()) == []
    database.execute("DROP TRIGGER refuse")
    made = uploads.check(draft.id, CheckOptions()).dataset
    assert made is not None
    assert [path.read_bytes() for path in uploads.originals(made)] == before
    assert not uploads.drafts.folder(draft.id).exists()


def test_reading_a_large_dataset_again_needs_no_room_for_it(tmp_path: Path) -> None:
    uploads, _, _ = _uploads(tmp_path / "home")
    made = uploads.check(_filled(uploads, "large").id, CheckOptions()).dataset
    assert made is not None
    (original,) = uploads.originals(made)
    # Sparse: larger than what is free, and yet here.
    size = 2 * shutil.disk_usage(tmp_path).total
    os.truncate(original, size)
    draft = uploads.reread(made.id)
    assert (draft.files[0].bytes, draft.files[0].received) == (size, size)
    ((_, path),) = uploads.drafts.paths(draft.id)
    assert path.samefile(original)

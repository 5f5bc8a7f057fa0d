"""Kills a process at each file that a check of an upload touches, and looks at what is left.

Run as `python -m support.upload_deaths FOLDER`; prints one line of JSON a death.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from slidepack.daemon.drafts import AnnouncedFile
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.settings import Settings
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.database import Database
from slidepack.daemon.uploads import Uploads
from slidepack.engine.data.report import CheckOptions

BODIES: Final = (
    b'{"prompt": "one", "completion": "yes"}\n',
    b'{"prompt": "two", "completion": "no"}\n',
)
_TOUCHES: Final = (
    "open",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
    "shutil.rmtree",
    "sqlite3.connect",
)
"""Audit events of what is looked at, made or removed."""


def open_uploads(home: Path) -> tuple[Uploads, Catalogue]:
    """Open a data directory's uploads, as a daemon does at its start."""
    paths = DataPaths(home)
    paths.create()
    catalogue = Catalogue(Database(paths.database))
    uploads = Uploads(catalogue, paths, Settings(disk_floor_gb=0))
    uploads.clean_up()
    return uploads, catalogue


async def _sent(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _upload(home: Path) -> str:
    uploads, _ = open_uploads(home)
    names = [f"{number}.jsonl" for number in range(len(BODIES))]
    draft = uploads.drafts.create(
        [
            AnnouncedFile(name=name, bytes=len(body))
            for name, body in zip(names, BODIES, strict=True)
        ]
    )
    for number, body in enumerate(BODIES):
        asyncio.run(uploads.drafts.receive(draft.id, number, 0, _sent(body)))
    return draft.id


def _dying(touches: int) -> Callable[[str, tuple[Any, ...]], None]:
    left = itertools.count(touches, -1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _TOUCHES and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def _die_checking(home: Path, draft: str, touches: int) -> bool:
    """Check an upload in a process that dies before a touch; return whether it came to it."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    uploads, _ = open_uploads(home)
    sys.addaudithook(_dying(touches))
    uploads.check(draft, CheckOptions())
    os._exit(0)


def _left(home: Path, draft: str) -> dict[str, Any]:
    """Start anew, go on with what is there, and return what came of it."""
    uploads, catalogue = open_uploads(home)
    if not catalogue.datasets():
        uploads.check(draft, CheckOptions())
    (dataset,) = catalogue.datasets()
    originals = [path.read_bytes() for path in uploads.originals(dataset)]
    folders = [path.name for path in (home / "datasets").iterdir()]
    return {"whole": originals == list(BODIES), "rows": dataset.report.accepted, "folders": folders}


def main(root: Path) -> None:
    """Die at the first touch, at the second, and so on until the check comes to its end."""
    for touches in itertools.count():
        home = root / str(touches)
        draft = _upload(home)
        died = _die_checking(home, draft, touches)
        sys.stdout.write(json.dumps({"died": died} | _left(home, draft)) + "\n")
        if not died:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))

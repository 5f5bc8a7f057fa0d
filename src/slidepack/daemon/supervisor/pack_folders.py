"""Deletes the folders of packs that nobody needs any more."""

import logging
import shutil
from pathlib import Path

from slidepack.daemon.store.packs import PackStore

__all__ = ["clean_up_packs"]

logger = logging.getLogger(__name__)


def clean_up_packs(packs: PackStore, folder: Path) -> None:
    """Delete what is left of packs whose jobs are all deleted, and of such as never began.

    Args:
        packs: those that are known.
        folder: of all packs; nothing outside it is ever deleted.
    """
    for pack in packs.without_lanes():
        if _is_gone(Path(pack.folder), folder):
            packs.remove(pack.id)
    known = {Path(path).name for path in packs.folders()}
    for found in folder.iterdir():
        if found.name not in known:
            # Left by a daemon that died between making it and recording it.
            _is_gone(found, folder)


def _is_gone(path: Path, folder: Path) -> bool:
    if path.parent.resolve() != folder.resolve():
        return False
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        # It is tried again at the next start.
        logger.warning("%s stays on the disk for now: %s", path, error)
        return False
    return True

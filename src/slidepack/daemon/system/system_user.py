"""Who runs the machine's service, and whether that user could."""

import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from slidepack.daemon.system.systemctl import Manager
from slidepack.engine.contract.errors import SlidepackError

SYSTEM_USER: Final = "slidepack"
_HOME: Final = "/var/lib/slidepack"


def user_name() -> str:
    """Return the name of the user of this process."""
    return pwd.getpwuid(os.getuid()).pw_name


def require_root() -> None:
    """Refuse anybody but root.

    Raises:
        SlidepackError: DAEMON-SERVICE-FAILED.
    """
    if os.geteuid() != 0:
        raise SlidepackError(
            "DAEMON-SERVICE-FAILED",
            "A service of the machine is root's to change.",
            why=f"this is user {user_name()}",
            fix="Run it with sudo and the whole path of `slidepack`, or leave out --system.",
        )


def require_readable(files: Sequence[Path]) -> None:
    """Refuse an installation in a folder that the service's user may not enter.

    Raises:
        SlidepackError: DAEMON-SERVICE-FAILED.
    """
    folders = {folder for file in files for folder in (*file.parents, *file.resolve().parents)}
    for folder in sorted(folders):
        if not folder.stat().st_mode & stat.S_IXOTH:
            raise SlidepackError(
                "DAEMON-SERVICE-FAILED",
                f"The user {SYSTEM_USER} could not run this installation of Slidepack.",
                why=f"others may not enter {folder}",
                fix="Install Slidepack in a folder for all, as /opt/slidepack, and run its "
                "`slidepack service install --system`.",
            )


def require_user(manager: Manager) -> None:
    """Make the service's user where it is missing.

    Raises:
        SlidepackError: DAEMON-SERVICE-FAILED.
    """
    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        manager.add_user(SYSTEM_USER, _HOME)

"""What the daemon may mend by itself: only what takes no rights, no download and no restart."""

import os
import pwd
from typing import Final, Literal, get_args

from slidepack.daemon.system.systemctl import Manager
from slidepack.daemon.system.unit_file import UNIT_NAME

__all__ = ["FIXES", "FixName", "carry_out"]

FixName = Literal["enable-service", "enable-linger"]
FIXES: Final[tuple[FixName, ...]] = get_args(FixName)


def carry_out(name: FixName) -> None:
    """Mend one thing.

    Raises:
        SlidepackError: DAEMON-NO-SYSTEMD or DAEMON-SERVICE-FAILED.
    """
    manager = Manager(system=False)
    if name == "enable-linger":
        manager.enable_linger(pwd.getpwuid(os.getuid()).pw_name)
    else:
        # Not `--now`: this daemon may run on the data directory without being the service.
        manager.run("enable", UNIT_NAME)

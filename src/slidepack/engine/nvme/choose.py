"""Which transport a run gets, and the room it needs before it begins."""

import errno
import importlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.nvme.failures import disk_error
from slidepack.engine.nvme.files import part_bytes
from slidepack.engine.nvme.lanes import THREADS
from slidepack.engine.nvme.ring import RingTransport
from slidepack.engine.nvme.transport import Transport


def open_transport(*, device_memory: bool, wanted: str = "", threads: int = THREADS) -> Transport:
    """Start the transport of a run; its `reason` says why it is that one.

    Args:
        device_memory: state goes to the GPU and back without resting in RAM, so a transport that
            can do that is taken where the driver lets drive and card exchange bytes.
        wanted: "ring" or "kvikio", whatever the driver offers; empty chooses.
        threads: in each direction.

    Raises:
        SlidepackError: RUN-SPEC-INVALID: kvikio is wanted and not installed.
    """
    if wanted == "ring":
        return RingTransport(threads=threads, why="as was asked")
    if not wanted and not device_memory:
        return RingTransport(threads=threads, why="the state passes through RAM")
    made = _kvikio(threads, force=wanted == "kvikio")
    if not isinstance(made, str):
        return made
    if wanted == "kvikio":
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The transport kvikio cannot be used.",
            why=made,
            fix="Install it with `pip install slidepack[gds]`, or leave the choice to the run.",
        )
    return RingTransport(threads=threads, why=made)


def _kvikio(threads: int, *, force: bool) -> Transport | str:
    """Return the transport, or why it is not to be used."""
    if importlib.util.find_spec("kvikio") is None:
        return "kvikio is not installed (`pip install slidepack[gds]`)"
    try:
        module = importlib.import_module("slidepack.engine.nvme.kvikio_transport")
    except (ImportError, OSError, RuntimeError) as error:
        return f"kvikio is installed and does not load ({str(error).strip().splitlines()[0]})"
    refused = module.gds_refused()
    if refused and not force:
        # Its POSIX mode copies through buffers of its own, which the ring does without.
        return f"kvikio is installed, but {refused}"
    made: Transport = module.KvikioTransport(threads=threads)
    return made


def require_room(folders: Sequence[Path], sizes: Sequence[int]) -> None:
    """Refuse to begin where the files would not fit.

    Args:
        folders: those that files are striped over.
        sizes: the bytes of each file that is to be made.

    Raises:
        SlidepackError: DISK-FULL: a file system has too little free, or DISK-UNWRITABLE.
    """
    needed: dict[int, int] = {}
    named: dict[int, Path] = {}
    for part, folder in enumerate(folders):
        try:
            device = os.stat(folder).st_dev
        except OSError as error:
            raise disk_error(error, "open", folder) from error
        named.setdefault(device, folder)
        share = sum(part_bytes(size, part, len(folders)) for size in sizes)
        needed[device] = needed.get(device, 0) + share
    for device, need in needed.items():
        found = os.statvfs(named[device])
        free = found.f_bavail * found.f_frsize
        if need > free:
            short = OSError(errno.ENOSPC, f"{need / 1e9:.1f} GB are needed, {free / 1e9:.1f} free")
            raise disk_error(short, "allocate", named[device])

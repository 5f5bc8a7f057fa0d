"""The training software, asked in a child process so that the daemon never imports torch."""

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec

from slidepack.daemon.probe.problem import ProbeFailure

TIMEOUT_SECONDS: Final = 120.0
"""A cold start of torch from a hard disk takes most of a minute."""
_SLICE_SECONDS: Final = 0.1
"""Between two looks at whether the answer is still wanted."""
_KILLED_SECONDS: Final = 2.0
_HUNG: Final = (
    "A hung graphics driver does this: restart the machine, then run `slidepack doctor` again."
)


class TorchDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One card as torch sees it."""

    index: int
    name: str
    uuid: str
    """In the driver's form (`GPU-…`); empty where torch does not give it."""
    pci_address: str
    """`dddd:bb:dd.0` in lower case; empty where torch does not give it."""
    architecture: str
    """`sm_89`, `gfx1100`."""
    total_bytes: int | None
    free_bytes: int | None
    supported: bool
    """Whether this build carries code for the card's architecture."""
    problem: str
    """Why a value is missing; empty where none is."""


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The installed torch."""

    version: str
    build: Literal["missing", "cpu", "cuda", "rocm"]
    build_version: str
    """Of CUDA or ROCm; empty for the other builds."""
    arch_list: tuple[str, ...]
    """The architectures that the build carries code for."""
    devices: tuple[TorchDevice, ...]
    warnings: tuple[str, ...]
    """What torch warned of while it looked for cards."""
    problem: str
    """Why torch does not import or shows no card; empty where all is well."""
    location: str = ""
    """The folder that it was imported from; empty where it was not."""


class TritonBuild(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The installed Triton; an empty version where it does not import, with the reason."""

    version: str
    problem: str


class KvikioBuild(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The installed kvikio (optional); an empty version where it does not import."""

    version: str
    gds_available: bool
    """Whether files go to the card past main memory (GPUDirect Storage)."""
    problem: str


class SoftwareInfo(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="software",
):
    """What the worker's Python has to train with."""

    python: str
    visible_devices: str
    """`CUDA_VISIBLE_DEVICES` or its ROCm twins, as `NAME=value`; empty where none is set."""
    torch: TorchBuild
    triton: TritonBuild
    kvikio: KvikioBuild


def torch_report_command() -> tuple[str, ...]:
    """Return the command that prints the report; -P keeps a torch.py in the folder out of it."""
    return (sys.executable, "-P", "-m", "slidepack.engine.torch_report")


class SoftwareProbe:
    """Asks in child processes, one at a time; never outlasts one that a driver holds."""

    def __init__(self, command: Sequence[str], *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Name what is run; nothing is yet.

        Args:
            command: `torch_report_command()`, or what a test puts in its place.
            timeout_seconds: after this a child is killed.
        """
        self._command = command
        self._timeout_seconds = timeout_seconds
        self._stopped = threading.Event()
        self._left: subprocess.Popen[bytes] | None = None

    def ask(self) -> SoftwareInfo:
        """Run the report in a child process and return what it printed last.

        Raises:
            ProbeFailure: the child does not start, does not end in time, fails, or prints no
                report; or `stop` was called.
        """
        if self._left is not None and self._left.poll() is None:
            raise _failure("The process that asked last cannot be ended.", _HUNG)
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise _failure(f"It could not be started: {error}.") from error
        said, complaint = self._communicate(child)
        if child.returncode:
            last = (complaint.decode(errors="replace").strip().splitlines() or [""])[-1]
            how = f"It ended with signal {-child.returncode}." if child.returncode < 0 else last
            raise _failure(how or f"It ended with status {child.returncode}.")
        # Libraries print to stdout while they load; the report is the last line.
        last_line = (said.strip().splitlines() or [b""])[-1]
        try:
            return msgspec.json.decode(last_line, type=SoftwareInfo)
        except msgspec.MsgspecError as error:
            raise _failure(f"Its answer is not a report: {error}.") from error

    def stop(self) -> None:
        """End a child that runs, from any thread; no further one is waited for."""
        self._stopped.set()

    def _communicate(self, child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
        until = time.monotonic() + self._timeout_seconds
        try:
            while not self._stopped.is_set() and time.monotonic() < until:
                with suppress(subprocess.TimeoutExpired):
                    return child.communicate(timeout=_SLICE_SECONDS)
        finally:
            if child.returncode is None:
                self._end(child)
        if self._stopped.is_set():
            raise _failure("It was not waited for, as the daemon stops.")
        raise _failure(f"It did not answer within {self._timeout_seconds:g} seconds.", _HUNG)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        try:
            child.wait(timeout=_KILLED_SECONDS)
        except subprocess.TimeoutExpired:
            # A driver that hangs holds it, and nobody can end it before the driver lets go.
            self._left = child
        # What it started may hold the other ends open.
        for pipe in (child.stdout, child.stderr):
            assert pipe is not None
            pipe.close()


def _failure(
    why: str, fix: str = "Run `python -m slidepack.engine.torch_report`; reinstall what it names."
) -> ProbeFailure:
    return ProbeFailure("The training software could not be looked at.", why=why, fix=fix)

"""The training software, asked in a child process so that the daemon never imports torch."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from slidepack.daemon.probe.problem import ProbeFailure

TIMEOUT_SECONDS: Final = 120.0
"""A cold start of torch from a hard disk takes most of a minute."""


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


def read_software(
    command: Sequence[str],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    env: Mapping[str, str] | None = None,
) -> SoftwareInfo:
    """Run the report in a child process and return what it printed last.

    Args:
        command: `torch_report_command()`, or what a test puts in its place.
        timeout_seconds: after this the child is killed.
        env: the child's environment; None is this process's own.

    Raises:
        ProbeFailure: the child does not start, does not end in time, fails, or prints no report.
    """
    try:
        child = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            env=env,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise _failure(
            f"It did not answer within {timeout_seconds:g} seconds.",
            "A hung graphics driver does this: restart the machine, then run doctor again.",
        ) from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        how = f"It ended with signal {-error.returncode}." if error.returncode < 0 else last
        raise _failure(how or f"It ended with status {error.returncode}.") from error
    except OSError as error:
        raise _failure(f"It could not be started: {error}.") from error
    # Libraries print to stdout while they load; the report is the last line.
    last_line = (child.stdout.strip().splitlines() or [b""])[-1]
    try:
        return msgspec.json.decode(last_line, type=SoftwareInfo)
    except msgspec.MsgspecError as error:
        raise _failure(f"Its answer is not a report: {error}.") from error


def _failure(
    why: str, fix: str = "Run `python -m slidepack.engine.torch_report`; reinstall what it names."
) -> ProbeFailure:
    return ProbeFailure("The training software could not be looked at.", why=why, fix=fix)

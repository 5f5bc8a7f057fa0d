"""Where a chat can run now. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slidepack.daemon.chat.subjects import Subject
from slidepack.daemon.hardware import DeviceNow
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.memory_chat import chat_need
from slidepack.engine.memory_parts import (
    DEVICE_CONTEXT_BYTES,
    GIB,
    HOST_PROCESS_BYTES,
    usable_bytes,
)

__all__ = ["Place", "Taken", "place"]

_ASK_AGAIN: Final = "or ask again when it has ended"


@dataclass(frozen=True, slots=True)
class Taken:
    """Why a device is not free."""

    why: str
    """As one clause."""
    remedy: str
    """What frees it; empty where only waiting helps."""
    session: str = ""
    """Id of the idle chat that holds it, and would make room."""
    gives_bytes: int = 0
    """That would be free without that chat."""
    soon: bool = False
    """Whether who is there leaves already."""


@dataclass(frozen=True, slots=True)
class Place:
    """A device for a chat."""

    device: DeviceNow
    cap_bytes: int
    """Of weights, adapters and cache."""
    replaces: str = ""
    """Id of the chat that makes room first."""


def place(
    subject: Subject, asked: str, devices: Sequence[DeviceNow], taken: Mapping[str, Taken]
) -> Place:
    """Return where a chat runs: on the first device with room, a free one before another chat's.

    Args:
        subject: whom it is with.
        asked: `auto` or the key of a device.
        devices: that there are, the cards before the CPU, with what is free of each.
        taken: why some of them are not free.

    Raises:
        SlidepackError: CHAT-REQUEST-INVALID where there is no such device, CHAT-BUSY where others
            use it, CHAT-NO-ROOM where the memory is too small.
    """
    choice = [device for device in devices if asked in ("auto", device.key)]
    if not choice:
        raise SlidepackError(
            "CHAT-REQUEST-INVALID",
            f"There is no device {asked} for a chat.",
            why=f"there are: {', '.join(device.key for device in devices)}",
            fix="Name one of these, or auto.",
        )
    free = [device for device in choice if device.key not in taken]
    held = [device for device in choice if device.key in taken and taken[device.key].session]
    shortages: dict[str, str] = {}
    for device in (*free, *held):
        found = _fits(subject, device, taken.get(device.key))
        if isinstance(found, Place):
            return found
        shortages[device.key] = found
    raise _refused(subject, choice, taken, shortages)


def _fits(subject: Subject, device: DeviceNow, chat: Taken | None) -> Place | str:
    """Return the place on a device, or what is too small for it."""
    machine, gives = device.machine, 0 if chat is None else chat.gives_bytes
    on_cpu = device.key == "cpu"
    need = chat_need(
        subject.shape,
        device=device.key,
        precision=subject.precision,
        adapter_params=subject.adapter_params,
    )
    ram = machine.ram_available_bytes + (gives if on_cpu else 0)
    wanted = [("RAM", need.host_bytes, ram)]
    if not on_cpu:
        wanted.append(("VRAM", need.device_bytes, machine.device_free_bytes + gives))
    for what, needed, there in wanted:
        if needed > usable_bytes(there):
            sizes = f"{needed / GIB:.1f} GiB of {what} are needed, {there / GIB:.1f} GiB are free"
            return f"{sizes}, and a tenth of that is held back"
    _, _, room = wanted[-1]
    beside = HOST_PROCESS_BYTES if on_cpu else DEVICE_CONTEXT_BYTES
    return Place(device, usable_bytes(room) - beside, "" if chat is None else chat.session)


def _refused(
    subject: Subject,
    choice: Sequence[DeviceNow],
    taken: Mapping[str, Taken],
    shortages: Mapping[str, str],
) -> SlidepackError:
    reasons = [
        f"{device.key}: {shortages.get(device.key) or taken[device.key].why}" for device in choice
    ]
    busy = [taken[device.key] for device in choice if device.key not in shortages]
    if not busy:
        return SlidepackError(
            "CHAT-NO-ROOM",
            f"There is not enough memory for a chat with {subject.title}.",
            why="; ".join(reasons),
            fix="Close what else uses the memory, or ask for the base in nf4.",
        )
    remedy = next((one.remedy for one in busy if one.remedy), "")
    return SlidepackError(
        "CHAT-BUSY",
        f"There is no device free for a chat with {subject.title}.",
        why="; ".join(reasons),
        fix=f"{remedy}, {_ASK_AGAIN}." if remedy else "Ask again when it has ended.",
    )

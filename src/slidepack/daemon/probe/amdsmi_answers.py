"""What AMD's own library adds to sysfs: market names, architectures and compute processes."""

import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from slidepack.daemon.probe.gpu import GpuProcess

T = TypeVar("T")

_POWER_KEYS: Final = ("socket_power", "current_socket_power", "average_socket_power")
"""Watts, under the name that the library's release and the card's generation give them."""
_UNSET: Final = 0xFFFF


class AmdSmiAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One card's answers; empty where the library refused, and `problems` says why."""

    name: str
    uuid: str
    architecture: str
    driver_version: str
    power_watts: float | None
    energy_joules: float | None
    processes: tuple[GpuProcess, ...]
    problems: tuple[str, ...]


def ask_amdsmi(load: Callable[[str], Any]) -> tuple[dict[str, AmdSmiAnswer], str]:
    """Return each card's answers by PCI address, and why there are none.

    Args:
        load: imports a module by name, as `importlib.import_module` does.
    """
    try:
        amdsmi = load("amdsmi")
    except ModuleNotFoundError:
        return {}, ""
    except (ImportError, OSError) as error:
        return {}, f"amdsmi does not load: {error}"
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        return {}, f"amdsmi does not start: {error}"
    try:
        handles = amdsmi.amdsmi_get_processor_handles()
        return {
            str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower(): _ask_card(amdsmi, handle)
            for handle in handles
        }, ""
    except amdsmi.AmdSmiException as error:
        return {}, f"amdsmi does not answer: {error}"
    finally:
        # The answers are in hand; a library that will not close changes none of them.
        with contextlib.suppress(amdsmi.AmdSmiException):
            amdsmi.amdsmi_shut_down()


def _ask_card(amdsmi: Any, handle: Any) -> AmdSmiAnswer:
    problems: list[str] = []

    def ask(label: str, query: Callable[[Any], T], refused: T) -> T:
        try:
            return query(handle)
        except amdsmi.AmdSmiException as error:
            problems.append(f"{label}: {error}")
            return refused

    asic: dict[str, Any] = ask("name", amdsmi.amdsmi_get_gpu_asic_info, {})
    driver: dict[str, Any] = ask("driver", amdsmi.amdsmi_get_gpu_driver_info, {})
    power: dict[str, Any] = ask("power", amdsmi.amdsmi_get_power_info, {})
    energy: dict[str, Any] = ask("energy", amdsmi.amdsmi_get_energy_count, {})
    processes: list[Any] = ask("processes", amdsmi.amdsmi_get_gpu_process_list, [])
    return AmdSmiAnswer(
        name=_text(asic.get("market_name")),
        uuid=_text(ask("uuid", amdsmi.amdsmi_get_gpu_device_uuid, "")),
        architecture=_text(asic.get("target_graphics_version")),
        driver_version=_text(driver.get("driver_version")),
        power_watts=_first_number(power, _POWER_KEYS),
        energy_joules=_joules(energy),
        processes=tuple(_process(found) for found in processes if isinstance(found, dict)),
        problems=tuple(problems),
    )


def _first_number(values: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    for key in keys:
        value = values.get(key)
        # What a card does not offer is N/A, or every bit of the field set.
        if isinstance(value, (int, float)) and 0 < value < _UNSET:
            return float(value)
    return None


def _joules(energy: dict[str, Any]) -> float | None:
    ticks = energy.get("energy_accumulator", energy.get("power"))
    microjoules = energy.get("counter_resolution")
    if not isinstance(ticks, (int, float)) or not isinstance(microjoules, (int, float)):
        return None
    return ticks * microjoules / 1e6


def _process(found: dict[str, Any]) -> GpuProcess:
    memory = found.get("memory_usage")
    used = memory.get("vram_mem") if isinstance(memory, dict) else None
    return GpuProcess(
        pid=int(found["pid"]),
        name=_text(found.get("name")),
        used_bytes=used if isinstance(used, int) else None,
    )


def _text(value: object) -> str:
    # The library writes N/A for what a card does not offer.
    return value if isinstance(value, str) and value != "N/A" else ""

"""The devices that chats may use: those of runs, and the CPU beside them."""

from collections.abc import Callable

from slidepack.daemon.hardware import DeviceNow, Waiting

__all__ = ["Devices", "chat_devices"]

Devices = Callable[[], list[DeviceNow] | Waiting]
"""Returns the devices, the cards before the CPU, with what is free of each."""


def chat_devices(of_runs: Devices, cpu: Devices) -> Devices:
    """Return what asks for the devices of chats.

    Args:
        of_runs: asks for the devices of runs.
        cpu: asks for the CPU as a device of runs.
    """

    def devices() -> list[DeviceNow] | Waiting:
        processor = cpu()
        if isinstance(processor, Waiting):
            return processor
        found = of_runs()
        # A card that cannot be used holds runs back; a chat may well go to the CPU meanwhile.
        cards = [] if isinstance(found, Waiting) else [one for one in found if one.key != "cpu"]
        return [*cards, *processor]

    return devices

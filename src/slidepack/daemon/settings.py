"""Settings: one struct, read from one TOML file, environment variables over it."""

import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import platformdirs

from slidepack.daemon.device_choice import check_choice
from slidepack.daemon.paths import expand_user
from slidepack.engine.contract.errors import SlidepackError

HOME_VARIABLE: Final = "SLIDEPACK_HOME"
"""Moves every file: data, settings, database."""
_PREFIX: Final = "SLIDEPACK_"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user may set; each field is also an environment variable, `SLIDEPACK_` + its name."""

    port: int = 7333
    """Port of the page and the API on 127.0.0.1; 0 takes any free one."""
    device: str = "auto"
    """`auto` trains on every usable card, `cpu` leaves them all alone, and `RTX 3090` or
    `cuda:0, cuda:2` trains on those: by a part of their name, torch's number, PCI address or UUID.
    What else uses a card that is not among them keeps nothing waiting."""
    disk_floor_gb: float = 1.0
    """Free space that uploads leave on the data directory's disk, in units of 1e9 bytes."""
    worker_stop_seconds: float = 60.0
    """How long a worker may take to checkpoint and leave before it is killed."""
    retry_seconds: float = 5.0
    """How long a job waits whose worker died without a step; then six times as long each time."""
    packing: Literal["on", "exact", "off"] = "on"
    """Whether LoRA jobs over one base share a pass. `exact` fills rows up, so that no job's result
    depends on its company by a single bit, at the price of the filling; `off` runs one at a time on
    each card."""
    chat_idle_minutes: float = 10.0
    """How long after its last answer a chat keeps its device from the queue."""
    model_endpoint: str = ""
    """Address of a Hugging Face mirror; empty is the hub itself."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        check_choice(self.device)
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; use 0 to 65535")
        if not 0 <= self.disk_floor_gb < math.inf:
            raise ValueError(f"disk_floor_gb is {self.disk_floor_gb}; use 0 or more")
        if not 1 <= self.worker_stop_seconds < math.inf:
            raise ValueError(f"worker_stop_seconds is {self.worker_stop_seconds}; use 1 or more")
        if not 0 <= self.retry_seconds <= 3600:
            raise ValueError(f"retry_seconds is {self.retry_seconds}; use 0 to 3600")
        if not 0 < self.chat_idle_minutes <= 1440:
            raise ValueError(f"chat_idle_minutes is {self.chat_idle_minutes}; use above 0 to 1440")


def data_home(environment: Mapping[str, str]) -> Path:
    """Return the directory under which all files live."""
    chosen = environment.get(HOME_VARIABLE)
    return expand_user(chosen).absolute() if chosen else platformdirs.user_data_path("slidepack")


def settings_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the settings file, which need not exist."""
    if environment.get(HOME_VARIABLE):
        return data_home(environment) / "settings.toml"
    return platformdirs.user_config_path("slidepack") / "settings.toml"


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        SlidepackError: DAEMON-SETTINGS.
    """
    path = settings_file(environment)
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
        for name in Settings.__struct_fields__:
            text = environment.get(_PREFIX + name.upper())
            if text is not None:
                values[name] = text
        return msgspec.convert(values, Settings, strict=False)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.MsgspecError) as error:
        raise SlidepackError(
            "DAEMON-SETTINGS",
            "The settings cannot be used.",
            why=f"{path} or a {_PREFIX} variable: {error}",
            fix=f"Known settings: {', '.join(Settings.__struct_fields__)}.",
        ) from error

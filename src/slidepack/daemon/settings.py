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
from slidepack.daemon.listening import check_hosts, listen_addresses
from slidepack.daemon.paths import expand_user
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.tier_folders import named_twice

HOME_VARIABLE: Final = "SLIDEPACK_HOME"
"""Moves every file: data, settings, database."""
PREFIX: Final = "SLIDEPACK_"
"""Of the environment variables that win over the settings file."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user may set; each field is also an environment variable, `SLIDEPACK_` + its name."""

    port: int = 7333
    """Port of the page and the API; 0 takes any free one."""
    listen: str = "local"
    """`local` is 127.0.0.1 alone; `lan` is every address of this machine, for peers with a private
    one; or addresses, separated by commas. Whatever is beyond 127.0.0.1 needs a password."""
    allowed_hosts: str = ""
    """Further names, separated by commas, under which the page may be asked for, as behind a
    proxy: `train.example.org`. Names and addresses of this machine need not be among them."""
    tls_certificate: str = ""
    """PEM file with a certificate and its chain: all but 127.0.0.1 then speaks HTTPS only."""
    tls_key: str = ""
    """PEM file with the certificate's key, which must need no passphrase."""
    tls_port: int = 7334
    """Port of HTTPS, where there is a certificate; 0 takes any free one."""
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
    keep_state_days: float = 30.0
    """How long after its end an adapter's last checkpoint stays, from which it can be gone on
    with; 0 keeps the result alone."""
    nvme: Literal["auto", "on", "off"] = "auto"
    """Whether the state of a full fine-tuning that does not fit the RAM may lie on drives, which
    wears them out. `auto` uses NVMe and SATA SSDs alone; `on` whatever the folders are on; `off`
    leaves drives alone."""
    nvme_folders: str = ""
    """Folders for that state, separated by commas, one on each drive; empty is one in the data
    directory."""
    model_endpoint: str = ""
    """Address of a Hugging Face mirror; empty is the hub itself."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        check_choice(self.device)
        folders(self.nvme_folders)
        listen_addresses(self.listen)
        check_hosts(self.allowed_hosts)
        for name, port in (("port", self.port), ("tls_port", self.tls_port)):
            if not 0 <= port <= 65535:
                raise ValueError(f"{name} is {port}; use 0 to 65535")
        if bool(self.tls_certificate) != bool(self.tls_key):
            lacking = "tls_key" if self.tls_certificate else "tls_certificate"
            raise ValueError(f"{lacking} is empty; a certificate and its key go together")
        if self.tls_certificate and self.port and self.port == self.tls_port:
            raise ValueError(f"tls_port is {self.tls_port}, as port is; use two")
        if not 0 <= self.disk_floor_gb < math.inf:
            raise ValueError(f"disk_floor_gb is {self.disk_floor_gb}; use 0 or more")
        if not 1 <= self.worker_stop_seconds < math.inf:
            raise ValueError(f"worker_stop_seconds is {self.worker_stop_seconds}; use 1 or more")
        if not 0 <= self.retry_seconds <= 3600:
            raise ValueError(f"retry_seconds is {self.retry_seconds}; use 0 to 3600")
        if not 0 < self.chat_idle_minutes <= 1440:
            raise ValueError(f"chat_idle_minutes is {self.chat_idle_minutes}; use above 0 to 1440")
        if not 0 <= self.keep_state_days <= 36_500:
            raise ValueError(f"keep_state_days is {self.keep_state_days}; use 0 to 36500")


def folders(text: str) -> tuple[Path, ...]:
    """Return the folders that a setting names.

    Raises:
        ValueError: one is not absolute, or is named twice, be it by another of its names.
    """
    found = tuple(expand_user(part.strip()) for part in text.split(",") if part.strip())
    for folder in found:
        if not folder.is_absolute():
            raise ValueError(f"nvme_folders names {folder}; use absolute folders")
    if named_twice(found):
        raise ValueError("nvme_folders names a folder twice")
    return found


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
        return settings_from(file_values(path), environment)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.MsgspecError) as error:
        raise SlidepackError(
            "DAEMON-SETTINGS",
            "The settings cannot be used.",
            why=f"{path} or a {PREFIX} variable: {error}",
            fix=f"Known settings: {', '.join(Settings.__struct_fields__)}.",
        ) from error


def file_values(path: Path) -> dict[str, Any]:
    """Return what the settings file says, unchecked; nothing where there is none.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8.
        TOMLDecodeError: it is not TOML.
    """
    # Editors of Windows write a byte-order mark, which TOML does not know.
    return tomllib.loads(path.read_text("utf-8-sig")) if path.exists() else {}


def settings_from(values: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Return the settings of a file's values with the environment's over them.

    Raises:
        ValidationError: they cannot be used.
    """
    merged = dict(values)
    for name in Settings.__struct_fields__:
        text = environment.get(variable_of(name))
        if text is not None:
            merged[name] = text
    return msgspec.convert(merged, Settings, strict=False)


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()

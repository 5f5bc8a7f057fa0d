"""Tells whether a model folder is still the same: exactly by content, cheaply by size and time."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_NAMES: Final = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "config.json",
        "generation_config.json",
        "merges.txt",
        "model.safetensors.index.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
    }
)

_BLOCK_BYTES: Final = 4 << 20


def model_files(folder: Path) -> list[Path]:
    """Return the files that make the model what it is, sorted by name.

    These are config, generation config, tokenizer and every safetensors file with its index; a
    README or a training log beside them is not part of the model.
    """
    return sorted(
        (
            path
            for path in folder.iterdir()
            if (path.name in _NAMES or path.suffix == ".safetensors") and path.is_file()
        ),
        key=lambda path: path.name,
    )


def content_hash(folder: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the sha256, in hex, over the sorted (name, sha256 of content) of the model's files.

    Files are streamed; `on_bytes` gets the number of bytes of every block read.

    Raises:
        OSError: a file cannot be read.
    """
    total = hashlib.sha256()
    for path in model_files(folder):
        one = hashlib.sha256()
        for block in _blocks(path):
            one.update(block)
            if on_bytes is not None:
                on_bytes(len(block))
        # A name cannot hold NUL, so no two lists of files give the same bytes here.
        total.update(f"{path.name}\0{one.hexdigest()}\n".encode())
    return total.hexdigest()


def quick_stamp(folder: Path) -> str:
    """Return a mark over names, sizes and modification times of the model's files.

    An equal stamp means that nothing was touched; a different one, that `content_hash` must tell.

    Raises:
        OSError: the folder cannot be read.
    """
    total = hashlib.sha256()
    for path in model_files(folder):
        stat = path.stat()
        total.update(f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return total.hexdigest()


def _blocks(path: Path) -> Iterator[memoryview]:
    buffer = bytearray(_BLOCK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(view):
            yield view[:count]

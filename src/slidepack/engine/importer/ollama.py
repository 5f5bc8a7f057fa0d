"""Finds the GGUF file behind a name of Ollama's, in its folder of models; only reads.

Ollama keeps a manifest for each name, which lists what the model is made of by digest, and each
part as a file named after its digest.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slidepack.engine.contract.errors import SlidepackError

__all__ = ["OLLAMA_PREFIX", "find_blob", "ollama_folders"]

OLLAMA_PREFIX: Final = "ollama:"
"""With which a source is a name of Ollama's, e.g. `ollama:llama3.2:1b`."""

_REGISTRY: Final = "registry.ollama.ai"
_LIBRARY: Final = "library"
_TAG: Final = "latest"
_PART: Final = re.compile(r"[A-Za-z0-9][\w.-]*")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_KIND: Final = "application/vnd.ollama.image."
_SYSTEM: Final = (Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama"))
_MOST_SHOWN: Final = 8


def ollama_folders(environment: Mapping[str, str], home: Path) -> list[Path]:
    """Return where Ollama may keep its models, the likeliest first.

    Args:
        environment: whose OLLAMA_MODELS names a folder of the user's choice.
        home: of the user.
    """
    named = environment.get("OLLAMA_MODELS")
    own = [Path(named)] if named else []
    return [*own, home / ".ollama" / "models", *_SYSTEM]


def find_blob(name: str, folders: Sequence[Path]) -> Path:
    """Return the GGUF file of a model that Ollama has pulled or created.

    Args:
        name: as `ollama list` shows it; the tag may be left out.
        folders: where to look, as `ollama_folders` returns them.

    Raises:
        SlidepackError: MODEL-NOT-FOUND, MODEL-UNSUPPORTED for a model with an adapter of its own or
            without a GGUF file, MODEL-BROKEN where its manifest or its file is damaged or missing.
    """
    place = _place(name)
    unreadable: list[str] = []
    for folder in folders:
        manifest = folder / "manifests" / place
        try:
            if manifest.is_file():
                return _blob(name, manifest, folder)
        except OSError as error:
            unreadable.append(f"{folder} cannot be read ({error.strerror})")
    installed = sorted({model for folder in folders for model in _installed(folder)})
    shown = ", ".join(installed[:_MOST_SHOWN]) + (", …" if len(installed) > _MOST_SHOWN else "")
    where = f"it is not among {shown}" if installed else f"none is in {_listed(folders)}"
    raise SlidepackError(
        "MODEL-NOT-FOUND",
        "Ollama has no such model here.",
        why="; ".join([f"{name}: {where}", *unreadable]),
        fix=f"Run `ollama pull {name}`, or name one that `ollama list` shows; OLLAMA_MODELS names "
        "another folder.",
    )


def _listed(folders: Sequence[Path]) -> str:
    return ", ".join(map(str, folders))


def _place(name: str) -> Path:
    """Return a manifest's path in its folder."""
    *rest, last = name.split("/")
    model, _, tag = last.partition(":")
    defaults = [_REGISTRY, _LIBRARY]
    parts = [*defaults[: 2 - len(rest)], *rest, model, tag or _TAG]
    if len(rest) > 2 or not all(map(_PART.fullmatch, parts)):
        raise SlidepackError(
            "MODEL-NOT-FOUND",
            "This is no name of a model of Ollama's.",
            why=f"{name!r} is not of the form model, model:tag or owner/model:tag",
            fix="Name one that `ollama list` shows, e.g. ollama:llama3.2:1b.",
        )
    return Path(*parts)


def _blob(name: str, manifest: Path, folder: Path) -> Path:
    layers = _layers(name, manifest)
    if _KIND + "adapter" in layers:
        raise _unsupported(
            name, "it is a base with an adapter beside it (ADAPTER in its Modelfile)"
        )
    digest = layers.get(_KIND + "model")
    if digest is None:
        raise _unsupported(name, "it has no GGUF file: " + (", ".join(layers) or "it is empty"))
    if not _DIGEST.fullmatch(digest):
        raise _broken(name, f"{manifest} names the digest {digest!r}")
    blob = folder / "blobs" / digest.replace(":", "-")
    if not blob.is_file():
        raise _broken(name, f"{blob} is missing")
    return blob


def _layers(name: str, manifest: Path) -> dict[str, str]:
    """Return the digests of a model's parts, by media type."""
    try:
        content: Any = json.loads(manifest.read_bytes())
        return {str(layer["mediaType"]): str(layer["digest"]) for layer in content["layers"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _broken(name, f"{manifest} cannot be read: {error}") from error


def _installed(folder: Path) -> list[str]:
    """Return the names in a folder, as `ollama list` shows them."""
    root = folder / "manifests"
    names: list[str] = []
    for path in root.glob("*/*/*/*"):
        registry, owner, model, tag = path.relative_to(root).parts
        spoken = [model] if owner == _LIBRARY else [owner, model]
        if registry != _REGISTRY:
            spoken = [registry, owner, model]
        names.append("/".join(spoken) + f":{tag}")
    return names


def _broken(name: str, why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-BROKEN",
        "Ollama's copy of the model is damaged or incomplete.",
        why=why,
        fix=f"Run `ollama pull {name}` again.",
    )


def _unsupported(name: str, why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-UNSUPPORTED",
        "This model of Ollama's cannot be brought in.",
        why=f"{name}: {why}",
        fix="Add the base model by its own name, a GGUF file or a Hugging Face folder.",
    )

"""Which copies of the packages that runs import this Python finds, and in which order.

Files are looked at and nothing is imported: a copy that hides the right one may do anything.
"""

import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from slidepack.daemon.probe.kernel_files import list_names

Place = Literal["pythonpath", "user", "python", "other", "cwd"]

OURS: Final[dict[str, tuple[str, ...]]] = {
    "slidepack": ("slidepack",),
    "torch": ("torch",),
    "triton": ("triton", "pytorch_triton", "pytorch_triton_rocm", "triton_rocm", "triton_windows"),
    "numpy": ("numpy",),
    "kvikio": ("kvikio", "kvikio_cu12", "kvikio_cu13"),
    "gguf": ("gguf",),
    "huggingface_hub": ("huggingface_hub",),
    "litestar": ("litestar",),
    "msgspec": ("msgspec",),
    "pyarrow": ("pyarrow",),
    "safetensors": ("safetensors",),
    "tokenizers": ("tokenizers",),
    "uvicorn": ("uvicorn",),
    "zstandard": ("zstandard",),
}
"""Import name -> the distributions that bring it."""

_DIST_INFO: Final = re.compile(r"(.+?)-([^-]+)\.dist-info")


class PackageCopy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that `import name` could find."""

    name: str
    path: str
    place: Place
    """`pythonpath`, the user's site, this Python's own site, another folder that Python searches,
    or the current directory, which only `python -m` and `python -c` search."""
    installed_as: tuple[str, ...]
    """`name version` of the distributions in the same folder that bring it; empty where none
    does."""


class Packages(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="packages",
):
    """What stands in the search path, in its order."""

    copies: tuple[PackageCopy, ...]
    hidden_stdlib: tuple[str, ...]
    """Files in PYTHONPATH with the name of a module of Python's own, which they hide."""
    leftovers: tuple[str, ...]
    """Folders `~name` that an interrupted pip left behind."""


class SearchPath(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where runs look for packages."""

    pythonpath: tuple[Path, ...]
    rest: tuple[Path, ...]
    """Everything behind PYTHONPATH."""
    user_site: Path | None
    sites: tuple[Path, ...]
    """This Python's own."""
    cwd: Path | None
    """None where it is gone."""


def search_path(pythonpath: str) -> SearchPath:
    """Return the path of a child of this Python that is started with `-P`.

    Args:
        pythonpath: the variable's value in the child's environment.
    """
    front = _entries(pythonpath)
    own = _entries(os.environ.get("PYTHONPATH", ""))
    # The first is the script's folder, unless this process was told to leave it out.
    tail = sys.path if sys.flags.safe_path else sys.path[1:]
    try:
        cwd = Path.cwd()
    except FileNotFoundError:
        cwd = None
    return SearchPath(
        pythonpath=front,
        rest=tuple(path for entry in tail if entry and (path := Path(entry)) not in own),
        user_site=Path(site.getusersitepackages()),
        sites=tuple(
            Path(folder)
            for folder in dict.fromkeys(
                [*site.getsitepackages(), *map(sysconfig.get_path, ("purelib", "platlib"))]
            )
        ),
        cwd=cwd,
    )


def read_packages(where: SearchPath, own_package: Path) -> Packages:
    """Look through the search path.

    Args:
        where: the folders.
        own_package: the folder of the Slidepack that runs, which is no foreign copy.
    """
    copies: list[PackageCopy] = []
    leftovers: list[str] = []
    folders = dict.fromkeys((*where.pythonpath, *where.rest))
    for folder in folders:
        names = list_names(folder)
        copies += _copies(folder, names, _place(folder, where), own_package)
        leftovers += [
            str(folder / name) for name in names if name.startswith("~") and _ours(name[1:])
        ]
    if where.cwd is not None and where.cwd not in folders:
        copies += _copies(where.cwd, list_names(where.cwd), "cwd", own_package)
    return Packages(
        copies=tuple(copies),
        hidden_stdlib=tuple(_hidden_stdlib(where.pythonpath)),
        leftovers=tuple(leftovers),
    )


def _entries(pythonpath: str) -> tuple[Path, ...]:
    # Python takes an empty entry for the current directory.
    return tuple(Path(entry or ".").absolute() for entry in pythonpath.split(":") if pythonpath)


def _place(folder: Path, where: SearchPath) -> Place:
    if folder in where.pythonpath:
        return "pythonpath"
    if folder == where.user_site:
        return "user"
    return "python" if folder in where.sites else "other"


def _copies(
    folder: Path, names: Sequence[str], place: Place, own_package: Path
) -> Iterator[PackageCopy]:
    distributions = _distributions(names)
    for name, brought_by in OURS.items():
        path = _importable(folder, names, name)
        if path is None or (name == "slidepack" and _same(path, own_package)):
            continue
        yield PackageCopy(
            name=name,
            path=str(path),
            place=place,
            installed_as=tuple(
                f"{distribution} {version}"
                for distribution in brought_by
                for version in distributions.get(distribution, ())
            ),
        )


def _distributions(names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if match := _DIST_INFO.fullmatch(name):
            normal = re.sub(r"[-_.]+", "_", match[1]).lower()
            found.setdefault(normal, []).append(match[2])
    return found


def _importable(folder: Path, names: Sequence[str], name: str) -> Path | None:
    """Return what `import name` takes from this folder; None where it looks further."""
    if name in names and (folder / name).is_dir():
        inside = list_names(folder / name)
        # A folder without it gives way to any real package behind it.
        if any(re.fullmatch(r"__init__(\.py|\.pyc|\..*so)", entry) for entry in inside):
            return folder / name
    pattern = re.compile(re.escape(name) + r"(\.py|\.pyc|(\..*)?\.so)")
    return next((folder / entry for entry in names if pattern.fullmatch(entry)), None)


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _ours(distribution: str) -> bool:
    # pip replaces the first letter: ~orch, ~orch-2.11.0.dist-info.
    stem = re.sub(r"[-_.]+", "_", distribution.split("-")[0]).lower()
    return any(name[1:] == stem for names in OURS.values() for name in names)


def _hidden_stdlib(pythonpath: Sequence[Path]) -> Iterator[str]:
    for folder in pythonpath:
        for entry in list_names(folder):
            stem = entry.removesuffix(".py")
            is_package = (folder / entry / "__init__.py").is_file()
            if stem in sys.stdlib_module_names and (entry != stem or is_package):
                yield str(folder / entry)

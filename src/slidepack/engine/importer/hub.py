"""Fetches a model from a Hugging Face hub: safetensors and small files only, at one commit."""

import concurrent.futures
import fnmatch
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Final

import msgspec
from huggingface_hub import HfApi, ModelInfo, errors, snapshot_download, utils

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.contract import Stage
from slidepack.engine.importer.folder import check_config
from slidepack.engine.importer.staging import require_space
from slidepack.engine.shape import PICKLE_SUFFIXES

_SMALL: Final = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
_WEIGHTS: Final = ("*.safetensors",)
# Files in folders are other formats of the same model; `consolidated` is a second copy.
_IGNORED: Final = ("*/*", "consolidated*")

_ASK_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.5
_SPACE_MARGIN: Final = 1.05


class HubSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What was fetched."""

    revision: str
    """Full sha of the commit."""
    license: str
    """As the model card states it; empty where it states none."""


def download(
    repo_id: str,
    revision: str,
    target: Path,
    progress: Callable[[int, int, Stage], None],
    endpoint: str | None = None,
) -> HubSnapshot:
    """Fetch a model into the existing folder `target`.

    Config and tokenizer come first and are checked, so that a model that cannot be trained is
    refused before gigabytes of it arrive. Must run in the main thread: a signal handler that
    raises ends it at once, and what its threads still write is for the caller to remove.

    Args:
        repo_id: `owner/name`.
        revision: branch, tag or commit; empty takes the default branch.
        target: an empty folder.
        progress: gets bytes done, bytes in all, and the stage.
        endpoint: address of the hub; None takes the one that the environment configures.

    Raises:
        SlidepackError: MODEL-NOT-FOUND, MODEL-UNREACHABLE, MODEL-PICKLE, MODEL-NOT-A-MODEL,
            MODEL-UNSUPPORTED or DISK-FULL.
        OSError: the disk refused.
    """
    utils.disable_progress_bars()  # type: ignore[attr-defined]  # the library forgot to export it
    with _hub_errors(repo_id, revision):
        info = HfApi(endpoint=endpoint).model_info(
            repo_id, revision=revision or None, timeout=_ASK_SECONDS, files_metadata=True
        )
        sizes = _sizes(info)
    _refuse_without_safetensors(repo_id, list(sizes))
    commit = info.sha or revision
    wanted = sum(sizes[name] for name in _matching(sizes, (*_SMALL, *_WEIGHTS)))
    require_space(target, int(wanted * _SPACE_MARGIN))

    def fetch(patterns: tuple[str, ...]) -> None:
        snapshot_download(
            repo_id,
            revision=commit,
            local_dir=target,
            allow_patterns=list(patterns),
            ignore_patterns=list(_IGNORED),
            endpoint=endpoint,
        )

    for patterns in (_SMALL, _WEIGHTS):
        with _hub_errors(repo_id, revision):
            _watch(fetch, patterns, lambda: progress(_stored(target), wanted, "downloading"))
        check_config(target)
    # The library's own notes about the download are no part of the model.
    rmtree(target / ".cache", ignore_errors=True)
    progress(wanted, wanted, "downloading")
    return HubSnapshot(revision=commit, license=str(getattr(info.card_data, "license", None) or ""))


def _watch(
    fetch: Callable[[tuple[str, ...]], None], patterns: tuple[str, ...], tick: Callable[[], None]
) -> None:
    # The download waits for its own threads; in a thread, it cannot keep a signal waiting.
    executor = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    try:
        future = executor.submit(fetch, patterns)
        while not future.done():
            concurrent.futures.wait([future], timeout=_POLL_SECONDS)
            tick()
        future.result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _sizes(info: ModelInfo) -> dict[str, int]:
    return {file.rfilename: file.size or 0 for file in info.siblings or []}


def _matching(names: dict[str, int], patterns: tuple[str, ...]) -> list[str]:
    return [name for name in names if _fits(name, patterns) and not _fits(name, _IGNORED)]


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _stored(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            # A finished part was just renamed.
            continue
    return total


def _refuse_without_safetensors(repo_id: str, names: list[str]) -> None:
    if any(_fits(name, _WEIGHTS) for name in names):
        return
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        raise SlidepackError(
            "MODEL-PICKLE",
            "The weights are pickle files, which can run code when they are read.",
            why=f"{repo_id} has {', '.join(pickles[:3])} and no .safetensors file",
            fix="Choose a model or a revision with safetensors files.",
        )
    raise SlidepackError(
        "MODEL-NOT-A-MODEL",
        "There are no weights at this hub id.",
        why=f"{repo_id} has no .safetensors file",
        fix="Choose a hub id with safetensors files; download a GGUF file yourself and name it.",
    )


@contextmanager
def _hub_errors(repo_id: str, revision: str) -> Iterator[None]:
    try:
        yield
    except errors.GatedRepoError as error:
        raise SlidepackError(
            "MODEL-UNREACHABLE",
            "The model's owner wants its terms accepted first.",
            why=f"{repo_id} is gated and this machine has no access to it",
            fix="Accept the terms on the model's page, run `hf auth login`, then add it again.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise _not_found(f"{repo_id} has no revision {revision}") from error
    except errors.RepositoryNotFoundError as error:
        # The hub answers the same for what is private and for what does not exist.
        raise _not_found(f"the hub knows no public model {repo_id}") from error
    except errors.HFValidationError as error:
        raise _not_found(f"{repo_id!r} is not a hub id") from error
    # Which HTTP library the base of all network errors comes from varies by version of the hub's.
    except (errors.HTTPError, OSError, RuntimeError) as error:  # type: ignore[attr-defined]
        # The hub's own errors carry no errno; what has one came from the disk.
        if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
            raise
        raise SlidepackError(
            "MODEL-UNREACHABLE",
            "The hub cannot be reached.",
            why=f"{repo_id}: {_evidence(error)}",
            fix="Check the network and try again, or add a local folder or GGUF file.",
        ) from error


def _not_found(why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-NOT-FOUND",
        "There is no such model on the hub.",
        why=why,
        fix="Check the spelling of owner/name; for a private model, run `hf auth login` first.",
    )


def _evidence(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    # The query of a download address can be a signature, which gives access like a password.
    return re.sub(r"\?\S+", "", f"{type(error).__name__}: {lines[0] if lines else ''}")

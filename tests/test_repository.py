"""Rules of the repository itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 500
PACKAGES = ("daemon", "web", "engine", "kernels")


def _tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_no_source_file_is_longer_than_the_cap() -> None:
    sources = _tracked("*.py", "*.js", "*.css", "*.html", "*.sql")
    assert sources
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in sources
        if (lines := len(path.read_text("utf-8").splitlines())) > MAX_LINES
    }
    assert not too_long


@pytest.mark.parametrize("name", PACKAGES)
def test_the_root_names_are_links_to_the_packages(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / "src" / "slidepack" / name


def test_package_markers_are_empty_except_the_kernels() -> None:
    filled = [
        path.relative_to(ROOT).as_posix()
        for path in _tracked("src/**/__init__.py", "src/*/__init__.py")
        if path.read_text("utf-8").strip()
    ]
    assert filled == ["src/slidepack/kernels/__init__.py"]


def test_the_lock_files_name_no_address() -> None:
    for name in ("package-lock.json", "constraints.txt"):
        assert "://" not in (ROOT / name).read_text("utf-8"), name


def test_the_readme_documents_every_make_target() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.M)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert not [target for target in targets if f"make {target}" not in readme]


def test_the_unit_file_is_valid(tmp_path: Path) -> None:
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(ROOT / "systemd" / "slidepack.service")],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
        )
    except FileNotFoundError:
        pytest.skip("no systemd-analyze here")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module", ["slidepack.web.server", "slidepack.cli.main", "slidepack.engine.importer.__main__"]
)
def test_torch_stays_out_of(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

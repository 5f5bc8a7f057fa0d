import os
from collections.abc import Mapping
from pathlib import Path

import pytest


class Tree:
    """A stand-in for the file system's root, written file by file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def link(self, name: str, target: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, path)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root = tmp_path / "root"
    root.mkdir()
    return Tree(root)

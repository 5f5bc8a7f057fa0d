"""What a model is called when nobody says: its folder's or its repository's whole name."""

from pathlib import Path

import pytest
from support.stores import open_stores
from support.tiny import save_tiny_model

from slidepack.daemon.changes import Changes
from slidepack.daemon.imports import ModelImports
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.settings import Settings
from slidepack.daemon.store.catalogue import Catalogue


@pytest.fixture
def imports(tmp_path: Path) -> ModelImports:
    paths = DataPaths(tmp_path / "home")
    paths.create()
    stores = open_stores(tmp_path / "home")
    return ModelImports(Catalogue(stores.database), paths, Settings(), Changes())


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("meta-llama/Llama-3.2-1B", "Llama-3.2-1B"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct"),
        ("  org/model.v2\n", "model.v2"),
    ],
)
def test_of_the_hub(source: str, name: str, imports: ModelImports) -> None:
    assert imports.add(source, "", "", 0.0).name == name


@pytest.mark.parametrize("name", ["Llama-3.2-1B", "model.gguf", " blanks around ", "plain"])
def test_of_a_folder(name: str, tmp_path: Path, imports: ModelImports) -> None:
    save_tiny_model(tmp_path / name)
    model = imports.add(str(tmp_path / name), "", "", 0.0)
    assert (model.name, model.kind) == (name, "folder")
    assert imports.add(str(tmp_path / name), "Mine", "", 0.0).id == model.id


@pytest.mark.parametrize(
    ("file", "name"), [("Llama-3.2-1B-Q4_K_M.gguf", "Llama-3.2-1B-Q4_K_M"), ("a.b", "a")]
)
def test_of_a_file(file: str, name: str, tmp_path: Path, imports: ModelImports) -> None:
    (tmp_path / file).write_bytes(b"GGUF" + bytes(60))
    assert imports.add(str(tmp_path / file), "", "", 0.0).name == name

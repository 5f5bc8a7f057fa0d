import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slidepack.daemon.probe.packages import PackageCopy, SearchPath, read_packages, search_path

replace = msgspec.structs.replace
NOWHERE = Path("/nowhere")


@pytest.fixture
def where(tree: Any) -> SearchPath:
    """A Python with a site of its own, the user's in front of it, and PYTHONPATH before both."""
    root = tree.root
    tree.write(
        {
            "site/torch/__init__.py": "",
            "site/torch-2.11.0+cu128.dist-info/METADATA": "",
            "site/numpy/__init__.py": "",
            "site/numpy-2.3.0.dist-info/METADATA": "",
        }
    )
    for name in ("scripts", "user", "work"):
        (root / name).mkdir()
    return SearchPath(
        pythonpath=(root / "scripts",),
        rest=(root / "lib", root / "user", root / "site"),
        user_site=root / "user",
        sites=(root / "site",),
        cwd=root / "work",
    )


def torches(where: SearchPath) -> list[PackageCopy]:
    return [copy for copy in read_packages(where, NOWHERE).copies if copy.name == "torch"]


def test_an_ordinary_install(where: SearchPath) -> None:
    packages = read_packages(where, NOWHERE)
    assert [(copy.name, copy.place, copy.installed_as) for copy in packages.copies] == [
        ("torch", "python", ("torch 2.11.0+cu128",)),
        ("numpy", "python", ("numpy 2.3.0",)),
    ]
    assert packages.hidden_stdlib == ()
    assert packages.leftovers == ()


@pytest.mark.parametrize(
    "file", ["torch.py", "torch.cpython-311-x86_64-linux-gnu.so", "torch/__init__.py", "torch.pyc"]
)
def test_what_hides_a_package(tree: Any, where: SearchPath, file: str) -> None:
    tree.write({f"scripts/{file}": ""})
    first, second = torches(where)
    assert (first.place, first.installed_as) == ("pythonpath", ())
    assert first.path == str(tree.root / "scripts" / file.removesuffix("/__init__.py"))
    assert second.place == "python"


@pytest.mark.parametrize("file", ["torch/data.txt", "torch_helpers.py", "torch.txt", "xtorch.py"])
def test_what_hides_nothing(tree: Any, where: SearchPath, file: str) -> None:
    tree.write({f"scripts/{file}": ""})
    assert len(torches(where)) == 1


def test_the_user_site_stands_in_front(tree: Any, where: SearchPath) -> None:
    tree.write({"user/torch/__init__.py": "", "user/torch-2.1.0.dist-info/METADATA": ""})
    assert [(copy.place, copy.installed_as) for copy in torches(where)] == [
        ("user", ("torch 2.1.0",)),
        ("python", ("torch 2.11.0+cu128",)),
    ]


def test_two_distributions_of_one_package(tree: Any, where: SearchPath) -> None:
    tree.write(
        {
            "site/triton/__init__.py": "",
            "site/triton-3.6.0.dist-info/METADATA": "",
            "site/pytorch_triton_rocm-3.4.0.dist-info/METADATA": "",
            "site/torch-2.10.0.dist-info/METADATA": "",
        }
    )
    copies = {copy.name: copy.installed_as for copy in read_packages(where, NOWHERE).copies}
    assert copies["triton"] == ("triton 3.6.0", "pytorch_triton_rocm 3.4.0")
    assert sorted(copies["torch"]) == ["torch 2.10.0", "torch 2.11.0+cu128"]


def test_what_an_interrupted_pip_left_behind(tree: Any, where: SearchPath) -> None:
    for name in ("~orch", "~orch-2.1.0.dist-info", "~omething"):
        (tree.root / "site" / name).mkdir()
    assert read_packages(where, NOWHERE).leftovers == (
        str(tree.root / "site" / "~orch"),
        str(tree.root / "site" / "~orch-2.1.0.dist-info"),
    )


def test_a_module_of_pythons_own_is_hidden(tree: Any, where: SearchPath) -> None:
    tree.write({"scripts/queue.py": "", "scripts/json/__init__.py": "", "scripts/types/x.txt": ""})
    assert set(read_packages(where, NOWHERE).hidden_stdlib) == {
        str(tree.root / "scripts" / "queue.py"),
        str(tree.root / "scripts" / "json"),
    }


def test_the_current_directory_counts_where_it_is_not_searched_anyway(
    tree: Any, where: SearchPath
) -> None:
    tree.write({"work/torch.py": ""})
    assert [copy.place for copy in torches(where)] == ["python", "cwd"]
    here = replace(where, pythonpath=(tree.root / "work",))
    assert [copy.place for copy in torches(here)] == ["pythonpath", "python"]
    assert [copy.place for copy in torches(replace(where, cwd=None))] == ["python"]


def test_the_slidepack_that_runs_is_no_foreign_copy(tree: Any, where: SearchPath) -> None:
    tree.write({"work/slidepack/__init__.py": "", "scripts/slidepack/__init__.py": ""})
    copies = read_packages(where, tree.root / "work" / "slidepack").copies
    assert [copy.place for copy in copies if copy.name == "slidepack"] == ["pythonpath"]


def test_a_folder_that_is_not_there_is_passed_over(where: SearchPath) -> None:
    assert len(torches(replace(where, pythonpath=(NOWHERE,)))) == 1


def test_the_path_of_a_child_with_another_pythonpath(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    monkeypatch.setenv("PYTHONPATH", str(mine))
    monkeypatch.setattr(sys, "path", ["/bin", str(mine), "/lib/python", "/site"])
    monkeypatch.chdir(tmp_path)
    where = search_path(f"{theirs}:")
    assert where.pythonpath == (theirs, tmp_path)
    assert where.rest == (Path("/lib/python"), Path("/site"))
    assert where.cwd == tmp_path
    assert search_path("").pythonpath == ()


def test_a_current_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert search_path("").cwd is None

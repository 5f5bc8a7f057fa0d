"""What a drive tells of its wear, and what is guessed where it tells nothing."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slidepack.daemon.probe.endurance import read_wear

TB = 10**12
SMARTCTL_NVME = {
    "model_name": "FAST 2TB",
    "nvme_smart_health_information_log": {"percentage_used": 12, "data_units_written": 140_000_000},
}
NVME_CLI = {"data_units_written": 140_000_000, "percent_used": 12}
SMARTCTL_SATA = {
    "logical_block_size": 512,
    "ata_smart_attributes": {
        "table": [
            {"name": "Power_On_Hours", "value": 99, "raw": {"value": 4}},
            {"name": "Wear_Leveling_Count", "value": 88, "raw": {"value": 120}},
            {"name": "Total_LBAs_Written", "value": 99, "raw": {"value": 140 * 10**9}},
        ]
    },
}


def _disk(tree: Any, name: str, *, sectors: int = 2 * TB // 512, readable: bool = True) -> Path:
    folder = f"sys/devices/pci/block/{name}"
    tree.write(
        {
            f"{folder}/size": f"{sectors}\n",
            f"{folder}/queue/rotational": "0\n",
            f"{folder}/device/model": "FAST 2TB  \n",
        }
    )
    if readable:
        tree.write({f"dev/{name.rpartition('n')[0] if name.startswith('nvme') else name}": ""})
    return Path(tree.root / folder)


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        pytest.param("nvme0n1", {"smartctl": SMARTCTL_NVME}, id="smartctl"),
        pytest.param("nvme0n1", {"nvme": NVME_CLI}, id="nvme-cli"),
        pytest.param("nvme0n1", {"nvme": {**NVME_CLI, "percentage_used": 12}}, id="newer nvme-cli"),
        pytest.param("sda", {"smartctl": SMARTCTL_SATA}, id="SATA"),
    ],
)
def test_a_worn_drive_tells_how_much_it_takes_in_its_life(
    name: str, answers: dict[str, Any], tree: Any
) -> None:
    asked: list[Sequence[str]] = []

    def ask(command: Sequence[str]) -> str:
        asked.append(command)
        return json.dumps(answers[command[0]]) if command[0] in answers else ""

    wear = read_wear(tree.root, _disk(tree, name), ask=ask)
    assert (wear.disk, wear.model, wear.size_bytes) == (name, "FAST 2TB", 2 * TB)
    assert wear.written_bytes == pytest.approx(71.68 * TB, rel=1e-3)
    assert wear.used_share == pytest.approx(0.12)
    assert wear.rated_write_bytes == pytest.approx(597.3 * TB, rel=1e-3)
    assert "12% is used after 71.7 TB" in wear.rated_source
    assert wear.problem == ""
    node = str(tree.root / "dev" / ("nvme0" if name.startswith("nvme") else name))
    assert all(command[-1] == node for command in asked)


def test_a_drive_that_is_hardly_worn_is_guessed_by_its_size(tree: Any) -> None:
    answer = {"nvme_smart_health_information_log": {"percentage_used": 1, "data_units_written": 9}}
    wear = read_wear(tree.root, _disk(tree, "nvme0n1"), ask=lambda _: json.dumps(answer))
    assert (wear.used_share, wear.written_bytes) == (0.01, 9 * 512_000)
    assert wear.rated_write_bytes == 400 * TB
    assert "guess" in wear.rated_source


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "not json",
        "[]",
        "{}",
        '{"nvme_smart_health_information_log": null}',
        '{"data_units_written": "many", "percent_used": true}',
    ],
)
def test_a_tool_that_says_nothing_of_use_is_no_answer(answer: str, tree: Any) -> None:
    wear = read_wear(tree.root, _disk(tree, "nvme0n1"), ask=lambda _: answer)
    assert (wear.written_bytes, wear.used_share) == (None, None)
    assert "smartctl" in wear.problem
    assert wear.rated_write_bytes == 400 * TB


def test_without_the_right_to_ask_nothing_is_run(tree: Any) -> None:
    def ask(command: Sequence[str]) -> str:
        raise AssertionError(command)

    wear = read_wear(tree.root, _disk(tree, "nvme0n1", readable=False), ask=ask)
    assert f"{tree.root / 'dev' / 'nvme0'}" in wear.problem
    assert "root" in wear.problem
    assert wear.rated_write_bytes == 400 * TB


def test_what_does_not_wear_out_so_has_no_rating(tree: Any) -> None:
    disk = _disk(tree, "sdb")
    tree.write({"sys/devices/pci/block/sdb/queue/rotational": "1\n"})
    assert read_wear(tree.root, disk, ask=lambda _: "").rated_write_bytes is None
    unknown = read_wear(tree.root, _disk(tree, "vda"), ask=lambda _: "")
    assert (unknown.rated_write_bytes, unknown.rated_source) == (None, "")


def test_the_real_tools_are_asked_with_a_limit(tree: Any, tmp_path: Path, monkeypatch: Any) -> None:
    tool = tmp_path / "bin" / "smartctl"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho '{json.dumps(SMARTCTL_NVME)}'\nexit 4\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    wear = read_wear(tree.root, _disk(tree, "nvme0n1"))
    assert wear.used_share == 0.12

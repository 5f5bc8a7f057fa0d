import dataclasses
import errno
import json
import os
import random
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.compiler import CompilationError
from triton.runtime.errors import OutOfResources

from slidepack.engine import bench
from slidepack.engine.bench_kernels.measure import Limit
from slidepack.engine.bench_kernels.operation import Prepared, Setting, Sizes, Unit
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.tune import lora, operations, table_file
from slidepack.engine.tune.candidates import (
    NF4,
    RMS_NORM_BACKWARD,
    expand_candidates,
    outer_candidates,
    shrink_candidates,
)
from slidepack.engine.tune.lora import best_pair, merged
from slidepack.engine.tune.run import tuned_rows
from slidepack.engine.tune.search import Load, Scored, Search, figures, search
from slidepack.engine.tune.table_file import check_writable, rendered, rewritten, write_rows
from slidepack.kernels import LoraTables
from slidepack.kernels.tiles import LoraTiles, Nf4Tiles, RmsNormBackwardTiles, read_tile_table

_TINY = Sizes(tokens=5, width=64, ffn=96, vocab=50, heads=4, kv_heads=2, head=16, params=2048)
_DEFAULT = LoraTiles.of(torch.device("cpu"))
_SHIPPED = table_file.table_path().read_text("utf-8")
_ODD = """\
# Before everything.
[default.nf4]
blocks = 32 # why 32

[ sm_90.nf4 ] # measured on a Tuesday
blocks = 16
# The next one is small on purpose.
warps = 2
obsolete = 7

# About the next table.
[gfx1100.nf4]
measured = "a # and a [sm_90.nf4] in a string"
blocks = 8"""
_ROW: dict[str, int | str] = {"blocks": 64, "warps": 4, "measured": 'best of 9, "quoted", 41.9 µs'}


class ScriptedMeter:
    """Runs each call once and asks `cost` for the time of what it launched last."""

    def __init__(self, cost: Callable[[], float]) -> None:
        self._cost = cost

    def limit(self, unit: Unit, amount: int) -> Limit:
        raise NotImplementedError

    def median_ms(self, call: Callable[[], Any]) -> float:
        raise NotImplementedError

    def interleaved_ms(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        times = []
        for call in calls:
            call()
            times.append(self._cost())
        return times

    def extra_bytes(self, prepared: Prepared) -> int:
        raise NotImplementedError


def _setting() -> Setting:
    return Setting(
        sizes=_TINY,
        device=torch.device("cpu"),
        dtype=torch.float32,
        generator=torch.Generator().manual_seed(0),
    )


def _search(times: dict[str, tuple[float, ...]], weights: tuple[float, ...]) -> Search[str]:
    launched: list[float] = []

    def load(number: int, weight: float) -> Load[str]:
        def bind(name: str) -> Callable[[], Any]:
            return lambda: launched.append(times[name][number])

        return Load(weight=weight, bind=bind)

    loads = [load(number, weight) for number, weight in enumerate(weights)]
    return search(list(times), loads, ScriptedMeter(lambda: launched[-1]))


# Search


def test_the_best_has_the_least_weighted_sum() -> None:
    found = _search({"a": (3.0, 3.0), "b": (2.0, 9.0), "c": (4.0, 3.0)}, (1.0, 0.25))
    assert [scored.sizes for scored in found.scored] == ["a", "b", "c"]
    assert found.best.score == 3.75
    assert found.best.times_ms == (3.0, 3.0)


@pytest.mark.parametrize(
    "failure",
    [
        OutOfResources(300000, 232448, "shared memory"),
        CompilationError("", None, "too wide"),
        RuntimeError("PassManager::run failed"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_candidate_that_does_not_run_is_skipped(failure: Exception) -> None:
    def bind(sizes: int) -> Callable[[], Any]:
        def run() -> None:
            if sizes == 2:
                raise failure

        return run

    found = search([1, 2, 3], [Load(weight=1.0, bind=bind)], ScriptedMeter(lambda: 0.05))
    assert [scored.sizes for scored in found.scored] == [1, 3]
    assert found.skipped == 1
    assert figures(found) == "50.0 us of 2 settings (50.0 to 50.0 us, 1 more do not run)"
    with pytest.raises(RuntimeError, match="None of 1 sizes"):
        search([2], [Load(weight=1.0, bind=bind)], ScriptedMeter(lambda: 0.05))


def test_a_failure_of_the_gpu_is_not_skipped() -> None:
    def broken() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        search([1], [Load(weight=1.0, bind=lambda _: broken)], ScriptedMeter(lambda: 1.0))


# Candidates


def _all_lora() -> list[LoraTiles]:
    return [
        *shrink_candidates(_DEFAULT),
        *expand_candidates(_DEFAULT),
        *outer_candidates(_DEFAULT),
    ]


def test_there_are_few_candidates_and_none_twice() -> None:
    assert len(RMS_NORM_BACKWARD) + len(NF4) + len(_all_lora()) <= 60
    for candidates in (
        RMS_NORM_BACKWARD,
        NF4,
        shrink_candidates(_DEFAULT),
        expand_candidates(_DEFAULT),
        outer_candidates(_DEFAULT),
    ):
        assert len(set(candidates)) == len(candidates)


@pytest.mark.parametrize("tiles", [*RMS_NORM_BACKWARD, *NF4, *_all_lora()], ids=str)
def test_a_candidate_has_sizes_that_triton_takes(
    tiles: RmsNormBackwardTiles | Nf4Tiles | LoraTiles,
) -> None:
    for name, value in dataclasses.asdict(tiles).items():
        assert value >= 1
        if not name.endswith("stages"):
            assert value & (value - 1) == 0, name
    if isinstance(tiles, LoraTiles):
        # Products of the matrix units are at least this large; a span holds whole blocks.
        assert min(tiles.row_tile, tiles.outer_tokens, tiles.outer_columns) >= 16
        assert min(tiles.shrink_columns, tiles.expand_columns) >= 16
        assert tiles.expand_span % tiles.expand_columns == 0


@pytest.mark.parametrize("device_class", sorted(read_tile_table()))
def test_every_row_of_the_table_is_among_the_candidates(device_class: str) -> None:
    table = {
        operation: {name: value for name, value in row.items() if name != "measured"}
        for operation, row in read_tile_table()[device_class].items()
    }
    assert RmsNormBackwardTiles(**table["rms_norm_backward"]) in RMS_NORM_BACKWARD
    assert Nf4Tiles(**table["nf4"]) in NF4
    tiles = LoraTiles(**table["lora"])
    for candidates in (shrink_candidates, expand_candidates, outer_candidates):
        assert tiles in candidates(tiles)


# LoRA


def _scored(score: float, **changed: int) -> Scored[LoraTiles]:
    sizes = dataclasses.replace(_DEFAULT, **changed)
    return Scored(sizes=sizes, times_ms=(score,), score=score)


def test_shrink_and_expand_agree_on_their_row_tile() -> None:
    shrink = Search(scored=(_scored(1.0, row_tile=64), _scored(2.0, row_tile=32)), skipped=0)
    expand = Search(scored=(_scored(1.0, row_tile=32), _scored(2.5, row_tile=64)), skipped=0)
    assert best_pair(shrink, expand) == (shrink.scored[1], expand.scored[0])
    with pytest.raises(RuntimeError, match="one row tile"):
        best_pair(
            Search(scored=shrink.scored[:1], skipped=0), Search(scored=expand.scored[:1], skipped=0)
        )


def test_each_kernel_keeps_its_own_sizes() -> None:
    names = [field.name for field in dataclasses.fields(LoraTiles)]
    shrink, expand, outer = (
        LoraTiles(**{name: 100 * kind + i for i, name in enumerate(names)}) for kind in (1, 2, 3)
    )
    sizes = dataclasses.asdict(merged(shrink, expand, outer))
    kinds = {name: value // 100 for name, value in sizes.items()}
    assert kinds == {
        name: 2 if name.startswith("expand") else 3 if name.startswith("outer") else 1
        for name in names
    }


def test_a_tuning_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers that only note the sizes; the wanted ones are the fastest."""
    wanted = {
        "rms": {"programs_per_multiprocessor": 4, "warps": 8, "stages": 1},
        "nf4": {"blocks": 16, "warps": 4},
        "shrink": {"row_tile": 32, "shrink_columns": 128, "shrink_warps": 4, "shrink_stages": 4},
        "expand": {
            "row_tile": 32,
            "expand_columns": 128,
            "expand_span": 1024,
            "expand_warps": 4,
            "expand_stages": 3,
        },
        "outer": {"outer_tokens": 64, "outer_columns": 64, "outer_warps": 4, "outer_stages": 3},
    }
    launched: list[tuple[str, Any]] = []
    lengths: set[int] = set()

    def launch(kernel: str, tiles: Any) -> None:
        if kernel == "shrink" and tiles.shrink_stages == 5:
            raise OutOfResources(1, 0, "shared memory")
        launched.append((kernel, tiles))

    def lora_kernel(kernel: str) -> Callable[..., None]:
        def run(x: Tensor, *arguments: Any, **options: Any) -> None:
            tables = next(one for one in arguments if isinstance(one, LoraTables))
            lengths.add(tables.tokens)
            assert x.shape[0] == tables.tokens
            launch(kernel, tables.sizes)

        return run

    def cost() -> float:
        kernel, tiles = launched[-1]
        hits = [getattr(tiles, name) == value for name, value in wanted[kernel].items()]
        return 0.02 if all(hits) else 0.09

    monkeypatch.setattr(
        operations, "rms_norm_bwd", lambda *a, tiles, **options: launch("rms", tiles)
    )
    monkeypatch.setattr(operations, "dequantise_nf4_launch", lambda *a, tiles: launch("nf4", tiles))
    for kernel in ("shrink", "expand", "outer"):
        monkeypatch.setattr(lora, f"{kernel}_launch", lora_kernel(kernel))
    rows = tuned_rows(_setting(), ScriptedMeter(cost), "NVIDIA H200")
    sizes = {
        operation: {name: value for name, value in row.items() if name != "measured"}
        for operation, row in rows.items()
    }
    assert sizes == {
        "rms_norm_backward": wanted["rms"],
        "nf4": wanted["nf4"],
        "lora": wanted["shrink"] | wanted["expand"] | wanted["outer"],
    }
    assert lengths == {4096, 16384}
    machine = f"NVIDIA H200, torch {torch.__version__}, Triton"
    figure = "20.0 us of {} settings (20.0 to 90.0 us{})"
    assert str(rows["nf4"]["measured"]).startswith(f"{figure.format(9, '')}; 96 x 64 float32, ")
    assert machine in str(rows["nf4"]["measured"])
    text = str(rows["lora"]["measured"])
    assert text.startswith(f"shrink {figure.format(11, ', 2 more do not run')}, expand 20.0 us of ")
    assert "32 adapters of rank 8-128, 4096 tokens (16384 count a third), 64 x 64" in text


# The file


def test_a_row_of_the_command_is_one_that_is_read_back() -> None:
    sizes = {"blocks": 16, "warps": 2}
    text = rewritten(_SHIPPED, "sm_90", {"nf4": sizes | {"measured": "a\nb\x7f"}})
    row = tomllib.loads(text)["sm_90"]["nf4"]
    assert row.pop("measured") == "a?b?"
    assert Nf4Tiles(**row) == Nf4Tiles(**sizes)


def _without(text: str, device_class: str) -> dict[str, Any]:
    return {name: table for name, table in tomllib.loads(text).items() if name != device_class}


@pytest.mark.parametrize(
    "text", [_SHIPPED, _ODD, _ODD + "\n\n", _ODD.replace("\n", "\r\n"), "[sm_90.nf4]", ""]
)
@pytest.mark.parametrize("device_class", ["default", "sm_90", "sm_120", "gfx90a"])
@pytest.mark.parametrize("operation", ["nf4", "rms_norm_backward"])
def test_a_rewritten_table_holds_the_row_and_all_others(
    text: str, device_class: str, operation: str
) -> None:
    new = rewritten(text, device_class, {operation: _ROW})
    before, after = tomllib.loads(text), tomllib.loads(new)
    assert after[device_class] == before.get(device_class, {}) | {operation: _ROW}
    assert _without(new, device_class) == _without(text, device_class)
    assert rewritten(new, device_class, {operation: _ROW}) == new
    if device_class not in before:
        assert new.startswith(text)
    # Whatever was a line and no key of the table is still there, in its order.
    remaining = iter(new.splitlines())
    for line in text.splitlines():
        if line.startswith(("[", "#")) or line == 'measured = "a # and a [sm_90.nf4] in a string"':
            assert line in remaining


def test_other_tables_and_comments_stay_byte_for_byte() -> None:
    before, rest = _ODD.split("blocks = 16\n")
    after = rest.partition("obsolete = 7\n")[2]
    new = rewritten(_ODD, "sm_90", {"nf4": _ROW})
    assert new == (
        f"{before}blocks = 64\n# The next one is small on purpose.\nwarps = 4\n"
        f"measured = {json.dumps(_ROW['measured'], ensure_ascii=False)}\n{after}"
    )


def test_a_new_class_is_appended_after_a_blank_line() -> None:
    new = rewritten(_SHIPPED, "sm_120", {"nf4": _ROW, "lora": dataclasses.asdict(_DEFAULT)})
    added = new.removeprefix(_SHIPPED)
    assert added.startswith("\n[sm_120.nf4]\nblocks = 64\nwarps = 4\nmeasured = ")
    assert "\n\n[sm_120.lora]\nrow_tile = 64\n" in added
    assert new.endswith("\n")
    assert rendered("sm_120", {"nf4": _ROW}) == added.partition("\n\n")[0].lstrip("\n") + "\n"


def test_rows_at_random_read_back() -> None:
    rng = random.Random(0)
    text = _SHIPPED
    for _ in range(200):
        name = rng.choice(["default", "sm_90", "sm_86", "gfx1100"])
        rows: dict[str, dict[str, int | str]] = {
            operation: {"warps": rng.randrange(1, 9), "measured": chr(rng.randrange(32, 0x3000))}
            for operation in rng.sample(["nf4", "lora", "rms_norm_backward"], rng.randrange(1, 4))
        }
        new = rewritten(text, name, rows)
        assert _without(new, name) == _without(text, name)
        for operation, row in rows.items():
            assert tomllib.loads(new)[name][operation]["warps"] == row["warps"]
        text = new


@pytest.mark.parametrize(
    "text", ["[sm_90]\nnf4 = {blocks = 3}\n", "[sm_90.nf4]\nblocks = [\n1]\n", "[sm_90"]
)
def test_a_file_of_another_form_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tile_table.toml"
    path.write_text(text)
    with pytest.raises(SlidepackError, match="DISK-UNWRITABLE"):
        write_rows(path, "sm_90", {"nf4": _ROW})
    assert path.read_text() == text
    assert os.listdir(tmp_path) == [path.name]


def test_writing_keeps_the_rights_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "tile_table.toml"
    path.write_bytes(_SHIPPED.encode())
    path.chmod(0o664)
    write_rows(path, "sm_90", {"nf4": _ROW})
    assert path.read_bytes() == rewritten(_SHIPPED, "sm_90", {"nf4": _ROW}).encode()
    assert path.stat().st_mode & 0o777 == 0o664
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EACCES, "DISK-UNWRITABLE"), (errno.ENOSPC, "DISK-FULL")]
)
def test_a_failed_write_has_a_code_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    path = tmp_path / "tile_table.toml"
    path.write_text(_SHIPPED)

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SlidepackError, match=f"{code}.*{os.strerror(number)}"):
        write_rows(path, "sm_90", {"nf4": _ROW})
    assert path.read_text() == _SHIPPED
    assert os.listdir(tmp_path) == [path.name]


def test_an_unwritable_place_is_found_out_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tile_table.toml"
    path.write_text(_SHIPPED)
    check_writable(path)
    # The tests may run as root, whom no rights hold back.
    monkeypatch.setattr(os, "access", lambda place, mode: place != tmp_path)
    with pytest.raises(SlidepackError, match=f"DISK-UNWRITABLE.*{tmp_path} is not writable"):
        check_writable(path)


# The command


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_tuned() -> None:
    with pytest.raises(RuntimeError, match="need a GPU"):
        bench.main(["tune", "--write"])
    assert table_file.table_path().read_text("utf-8") == _SHIPPED


def test_a_coded_error_is_printed_as_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*, write: bool) -> dict[str, Any]:
        raise SlidepackError("DISK-FULL", "The disk is full.", why=f"write is {write}")

    monkeypatch.setattr(bench, "bench_tune", refuse)
    assert bench.main(["tune", "--write"]) == 40
    report = json.loads(capsys.readouterr().out)["error"]
    assert (report["code"], report["why"]) == ("DISK-FULL", "write is True")

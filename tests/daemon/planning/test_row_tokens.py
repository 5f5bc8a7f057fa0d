"""The tokens of a row: estimated from the file's start, then learned from steps."""

from pathlib import Path

import pytest
from support.plan_shop import PlanShop

from slidepack.daemon.planning.row_tokens import UNKNOWN_ROW_TOKENS, RowSizes, estimated_tokens
from slidepack.engine.contract.job import DatasetRef
from slidepack.engine.data.rows import ChatRow, CompletionRow, TextRow, TokensRow, Turn, encode_row


def _dataset(path: Path, content_hash: str = "-") -> DatasetRef:
    return DatasetRef(dataset_id="1", path=str(path), content_hash=content_hash)


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        (ChatRow(1, (Turn("user", "x" * 35), Turn("assistant", "y" * 70))), 40),
        (CompletionRow(1, "x" * 35, "y" * 35), 20),
        (TextRow(1, "é" * 35), 20),
        (TokensRow(1, tuple(range(7)), (True,) * 7), 7),
    ],
)
def test_a_row_of_each_kind(row: ChatRow, tokens: int) -> None:
    assert estimated_tokens(row) == pytest.approx(tokens)


def test_the_start_of_the_file_tells_for_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    line = encode_row(TextRow(1, "x" * 350))
    # What is not read cannot be wrong.
    path.write_bytes(line * 2000 + b"!" * (len(line) * 8000))
    assert RowSizes().tokens(_dataset(path), 10_000) == pytest.approx(100, rel=0.01)


def test_one_row_that_is_longer_than_the_sample(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(encode_row(TextRow(1, "x" * 700_000)))
    assert RowSizes().tokens(_dataset(path), 1) == pytest.approx(200_000, rel=0.01)


def test_a_dataset_is_looked_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(encode_row(TextRow(1, "x" * 350)))
    sizes = RowSizes()
    first = sizes.tokens(_dataset(path), 1)
    path.unlink()
    assert sizes.tokens(_dataset(path), 1) == first
    assert sizes.tokens(_dataset(path, "other"), 1) == UNKNOWN_ROW_TOKENS


def test_what_jobs_have_counted_takes_the_place_of_the_estimate(shop: PlanShop) -> None:
    first, second = shop.add(), shop.add(batch_size=8)
    (before, _) = shop.reader.picture(1.0).jobs
    assert before.row_tokens == pytest.approx(60, rel=0.1)
    # 900 rows in batches of 4.
    shop.run(first, steps=3, tokens=480)
    shop.reader.picture(1.0)
    running, waiting = shop.new_reader().picture(1.0).jobs
    assert running.row_tokens == waiting.row_tokens == pytest.approx(120)
    assert (running.steps, running.running_on) == (222, "cuda:0")
    shop.end(first, 5.0)
    shop.stores.runlog.forget(first)
    (left,) = shop.new_reader().picture(1.0).jobs
    assert left.key == f"job {second}"
    assert left.row_tokens == pytest.approx(120)


def test_rows_that_turned_out_too_long_make_fewer_steps_for_the_next_job(shop: PlanShop) -> None:
    first = shop.add()
    shop.add()
    before = shop.reader.picture(1.0).jobs[1].steps
    shop.stores.jobs.move(first, "starting", "-", 1.0)
    shop.stores.attempts.add(first, 1, "-", "n", 1.0, device="cuda:0")
    shop.report_steps(first, 3, 480, rows=450)
    shop.reader.picture(1.0)
    after = shop.reader.picture(1.0).jobs[1].steps
    assert (before, after) == (225, 113)


def test_rows_read_in_another_way_are_others(shop: PlanShop) -> None:
    first = shop.add()
    shop.add(max_seq_len=64)
    shop.run(first, steps=3, tokens=480)
    shop.reader.picture(1.0)
    assert shop.reader.picture(1.0).jobs[1].row_tokens == pytest.approx(60, rel=0.1)

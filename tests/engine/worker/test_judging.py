"""Runs are judged on rows that training never saw, base against tuned, and stand on their own."""

import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from support.continuing import continued, result_weights
from support.judged import (
    LABELS,
    labelled_spec,
    reports_of,
    run_alone,
    summary_of,
    warnings_of,
)
from support.runs import dataset_ref, events_of, make_run, run_worker
from transformers import AutoModelForCausalLM

from slidepack.engine.contract.events import Finished
from slidepack.engine.contract.job import EvalSpec, FullMethod, JobSpec, LoraMethod, OptimSpec
from slidepack.engine.contract.judgement import JudgeReport, Voices
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.judge.questions import Questions
from slidepack.engine.worker.checkpoint import read_state
from slidepack.engine.worker.dataset import load_data
from slidepack.engine.worker.full_trainee import FullTrainee
from slidepack.engine.worker.judging import Judging
from slidepack.engine.worker.judging_pass import RowScore
from slidepack.engine.worker.trainee import LoraTrainee, Trainee
from slidepack.kernels import attention


def _questions(spec: JobSpec) -> Questions:
    tokenizer = load_tokenizer(Path(spec.base.path))
    return load_data(spec, tokenizer, spec.max_seq_len, lambda _row: None).judged_by


def _value(report: JudgeReport, kind: Any, voice: Any) -> float:
    found = report.value(kind, voice)
    assert found is not None
    return found


@pytest.mark.full
def test_what_can_be_learned_is_answered_rightly_in_the_end(tmp_path: Path) -> None:
    spec = labelled_spec(
        tmp_path,
        90,
        steps=40,
        batch_size=16,
        method=FullMethod(),
        optim=OptimSpec(lr=5e-3),
        checkpoint_every_steps=1000,
    )
    run = make_run(tmp_path / "run", spec)
    assert run_worker(run) == 0, run.log.read_text()
    first, last = reports_of(run)
    assert (first.step, last.step, last.split) == (0, 40, "test")
    assert last.rows == last.short_rows == 24
    for kind in ("exact_match", "exact_match_normalised"):
        assert (_value(last, kind, "base"), _value(last, kind, "tuned")) == (0.0, 1.0)
    assert _value(last, "choice", "tuned") == 1.0
    assert _value(last, "token_accuracy", "tuned") == 1.0
    assert [one.label for one in last.labels] == list(LABELS)
    assert all(one.right["tuned"] == one.rows == 8 for one in last.labels)
    exact = last.figure("exact_match")
    assert exact is not None
    (compared,) = exact.compared
    assert (compared.better, compared.worse) == (24, 0)
    assert compared.p == 2 / 2**24
    assert compared.sentence == (
        "0 of 24 right before, 24 after; the difference is no chance: p < 0.0001."
    )
    assert len(last.examples) == 20
    assert {(one.expected == one.answers["tuned"]) for one in last.examples} == {True}
    assert first.figures[0].measured == last.figures[0].measured[:1]
    assert msgspec.convert(summary_of(run)["judgement"], JudgeReport) == last


def test_figures_of_the_base_are_those_that_transformers_finds(tmp_path: Path) -> None:
    spec = labelled_spec(tmp_path)
    run = make_run(tmp_path / "run", spec)
    assert run_alone(run) == 0
    report, questions = reports_of(run)[0], _questions(spec)
    model = AutoModelForCausalLM.from_pretrained(spec.base.path, dtype=torch.float32)

    def log_probs(ids: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return found

    loss, right, tokens, chosen = 0.0, 0, 0, 0
    for row in questions.rows:
        (sample,) = row.samples
        found = log_probs(sample.ids)
        for place in range(1, len(sample.ids)):
            if sample.supervised[place]:
                loss -= float(found[place - 1, sample.ids[place]])
                right += int(found[place - 1].argmax()) == sample.ids[place]
                tokens += 1
        assert row.short is not None
        start = len(row.short.prompt)
        likelihoods = []
        for candidate in row.short.candidates:
            found = log_probs(candidate.ids)
            places = range(start, len(candidate.ids))
            likelihoods.append(sum(float(found[at - 1, candidate.ids[at]]) for at in places))
        chosen += likelihoods.index(max(likelihoods)) == row.short.label
    assert _value(report, "loss", "base") == pytest.approx(loss / tokens, rel=1e-5)
    assert _value(report, "token_accuracy", "base") == right / tokens
    assert _value(report, "choice", "base") == chosen / len(questions.rows)


def test_rows_that_nothing_was_held_out_of_are_not_judged(tmp_path: Path) -> None:
    for name, held in {
        "off": EvalSpec(test_fraction=0.3, judge_rows=0, sample_tokens=2),
        "none": EvalSpec(selection_fraction=0.0),
    }.items():
        run = make_run(tmp_path / name, labelled_spec(tmp_path, eval=held))
        assert run_alone(run) == 0
        assert reports_of(run) == []
        assert summary_of(run)["judgement"] is None


def test_long_answers_cost_nothing_but_their_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": f"Tell {i}. ", "completion": f"A story of {i} that goes on and on."}
        for i in range(30)
    ]
    held = EvalSpec(selection_fraction=0.2, sample_tokens=2)
    spec = labelled_spec(tmp_path, eval=held, dataset=dataset_ref(tmp_path, rows, "stories"))
    asked: list[int] = []
    answer = LoraTrainee.answer

    def counted(self: LoraTrainee, prompts: Any, *rest: Any, **more: Any) -> Any:
        asked.append(len(prompts))
        return answer(self, prompts, *rest, **more)

    monkeypatch.setattr(LoraTrainee, "answer", counted)
    run = make_run(tmp_path / "run", spec)
    assert run_alone(run) == 0
    report = reports_of(run)[-1]
    assert len(asked) == 2, "the questions of the job, before and after"
    assert [figure.kind for figure in report.figures] == ["loss", "token_accuracy"]
    assert (report.split, report.short_rows, report.examples) == ("selection", 0, ())
    assert len(report.notes) == 2
    assert report.notes[0].startswith("No test rows are held out")


@pytest.mark.parametrize("method", [LoraMethod(rank=4), FullMethod()], ids=["lora", "full"])
def test_a_run_that_died_before_its_result_is_judged_as_if_it_had_not(
    tmp_path: Path, method: LoraMethod | FullMethod
) -> None:
    spec = labelled_spec(tmp_path, method=method, checkpoint_every_steps=2)
    whole = make_run(tmp_path / "whole", spec)
    assert run_alone(whole) == 0
    found = reports_of(whole)
    assert len(found) == 2
    newest, older = whole.list_checkpoints()
    assert read_state(newest).step == spec.steps
    for name, checkpoint in {"end": newest, "middle": older}.items():
        again = make_run(tmp_path / name, spec, attempt=2, resume_from=(str(checkpoint),))
        assert run_alone(again) == 0
        assert reports_of(again) == found[1:]
        assert summary_of(again)["judgement"] == summary_of(whole)["judgement"]


@pytest.mark.parametrize(
    ("method", "trainee"),
    [(LoraMethod(rank=4), LoraTrainee), (FullMethod(), FullTrainee)],
    ids=["lora", "full"],
)
def test_figures_that_do_not_fit_cost_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any, trainee: Any
) -> None:
    def full(*_args: Any, **_more: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(trainee, "score", full)
    run = make_run(tmp_path / "run", labelled_spec(tmp_path, method=method))
    assert run_alone(run) == 0
    assert isinstance(events_of(run)[-1], Finished)
    told = [one for one in warnings_of(run) if one.code == "GPU-OUT-OF-MEMORY"]
    assert [one.message for one in told] == [
        "Figures of the base are left out: they did not fit: no room.",
        "Figures of the tuned model are left out: they did not fit: no room.",
    ]
    report = reports_of(run)[-1]
    assert report.figures == ()
    assert "Some figures are missing: see the warnings." in report.notes


@pytest.mark.parametrize("method", [LoraMethod(rank=4), FullMethod()], ids=["lora", "full"])
def test_a_walk_that_breaks_off_leaves_the_training_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: LoraMethod | FullMethod
) -> None:
    spec = labelled_spec(tmp_path, method=method)
    held = msgspec.structs.replace(spec.eval, judge_rows=0)
    plain = make_run(tmp_path / "plain", msgspec.structs.replace(spec, eval=held))
    assert run_alone(plain) == 0
    calls: list[int] = []

    def breaking(*arguments: Any) -> Any:
        calls.append(1)
        # In the first layer of one walk, and in the second of the other.
        if len(calls) in (1, 3):
            raise torch.OutOfMemoryError("no room")
        return attention(*arguments)

    monkeypatch.setattr("slidepack.engine.worker.judging_pass.attention", breaking)
    run = make_run(tmp_path / "run", spec)
    assert run_alone(run) == 0
    assert [one.code for one in warnings_of(run)].count("GPU-OUT-OF-MEMORY") == 2
    assert result_weights(run) == result_weights(plain)


def test_figures_that_take_too_long_are_left_out_and_the_rest_is_kept(tmp_path: Path) -> None:
    questions = _questions(labelled_spec(tmp_path))
    asked: list[str] = []
    warned: list[str] = []
    lengths: list[tuple[int, int]] = []

    def score(rows: Sequence[EncodedRow], *, tuned: bool) -> list[RowScore]:
        assert tuned
        asked.append("score")
        return [RowScore(2, 1, 3.0) for _ in rows]

    def answer(*_args: Any, **_more: Any) -> list[list[int]]:
        asked.append("answer")
        return []

    def answer_at_length(
        prompts: Sequence[Sequence[int]], most: int, _stop_ids: frozenset[int], *, tuned: bool
    ) -> list[list[int]]:
        assert tuned
        lengths.append((len(prompts), most))
        return [[0] * most for _ in prompts]

    trainee = SimpleNamespace(device=torch.device("cpu"), score=score, answer=answer)
    arguments = (
        questions,
        cast("Trainee", trainee),
        frozenset[int](),
        lambda _ids: "A",
        lambda: None,
        lambda: None,
        lambda code, _message: warned.append(code),
    )
    judging = Judging(
        *arguments,
        # It looks at the clock as it begins, before the tokens, and before the answers.
        clock=iter([0.0, 299.0, 301.0]).__next__,
    )
    voice = judging.ask("tuned")
    assert voice is not None
    assert (asked, warned) == (["score"], ["RUN-JUDGING-CUT"])
    assert {(one.tokens, one.right, one.answer, one.choice) for one in voice.rows} == {
        (2, 1, None, None)
    }
    report = judging.report(Voices(), voice, 4)
    assert [figure.kind for figure in report.figures] == ["loss", "token_accuracy"]
    assert report.notes[-1] == "Some figures are missing: see the warnings."
    # In time, all rows answer, and may say one token more than a short answer has.
    trainee.answer = answer_at_length
    patient = Judging(*arguments, clock=lambda: 0.0)
    voice = patient.ask("tuned")
    assert voice is not None
    assert all(one.answer == "A" and one.choice == 0 for one in voice.rows)
    assert sum(count for count, _ in lengths) == len(voice.rows)
    assert max(count for count, _ in lengths) <= 16
    assert {most for _, most in lengths} == {17}


def test_a_stop_while_a_run_is_judged_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = labelled_spec(tmp_path)
    whole = make_run(tmp_path / "whole", spec)
    assert run_alone(whole) == 0
    score = LoraTrainee.score

    def stopping(self: LoraTrainee, rows: Any, *, tuned: bool) -> Any:
        if tuned:
            # What SIGTERM does, at this very moment.
            os.kill(os.getpid(), signal.SIGTERM)
        return score(self, rows, tuned=tuned)

    run = make_run(tmp_path / "run", spec)
    with monkeypatch.context() as patched:
        patched.setattr(LoraTrainee, "score", stopping)
        assert run_alone(run) == 75
    assert not run.result.exists()
    (checkpoint, *_) = run.list_checkpoints()
    again = make_run(tmp_path / "again", spec, attempt=2, resume_from=(str(checkpoint),))
    assert run_alone(again) == 0
    assert reports_of(again) == reports_of(whole)[1:]


def test_a_job_that_continues_is_compared_with_what_it_began_with(tmp_path: Path) -> None:
    parent = make_run(tmp_path / "parent", labelled_spec(tmp_path, optim=OptimSpec(lr=3e-3)))
    assert run_alone(parent) == 0
    child = make_run(tmp_path / "child", continued(parent, steps=4))
    assert run_alone(child) == 0
    before, after = reports_of(parent)[-1], reports_of(child)[-1]
    for kind in ("loss", "token_accuracy", "exact_match", "choice"):
        assert _value(after, kind, "base") == _value(before, kind, "base")
        assert _value(after, kind, "before") == _value(before, kind, "tuned")
    loss = after.figure("loss")
    assert loss is not None
    assert [one.against for one in loss.compared] == ["base", "before"]
    assert "by the base" in loss.compared[0].sentence
    assert not math.isclose(_value(after, "loss", "tuned"), _value(after, "loss", "before"))
    # By other rows than its parent, it asks the base itself.
    held = msgspec.structs.replace(parent.read_spec().eval, judge_rows=5)
    fresh = make_run(tmp_path / "fresh", labelled_spec(tmp_path, eval=held))
    held = msgspec.structs.replace(continued(parent).eval, judge_rows=5)
    other = make_run(tmp_path / "other", continued(parent, steps=4, eval=held))
    assert run_alone(fresh) == run_alone(other) == 0
    base = _value(reports_of(fresh)[-1], "loss", "base")
    assert _value(reports_of(other)[-1], "loss", "base") == base
    assert _value(reports_of(other)[-1], "loss", "before") != base


def test_a_full_job_that_continues_knows_the_base_from_its_parent(tmp_path: Path) -> None:
    spec = labelled_spec(tmp_path, method=FullMethod(), checkpoint_every_steps=100)
    parent = make_run(tmp_path / "parent", spec)
    assert run_alone(parent) == 0
    child = make_run(tmp_path / "child", continued(parent, steps=4))
    assert run_alone(child) == 0
    before, after = reports_of(parent)[-1], reports_of(child)[-1]
    assert _value(after, "loss", "base") == _value(before, "loss", "base")
    assert _value(after, "loss", "before") == _value(before, "loss", "tuned")
    # Asked otherwise, it cannot be compared.
    held = msgspec.structs.replace(continued(parent).eval, judge_rows=5)
    other = make_run(tmp_path / "other", continued(parent, steps=4, eval=held))
    assert run_alone(other) == 0
    report = reports_of(other)[-1]
    assert report.rows == 5
    assert report.value("loss", "base") is None
    assert report.notes == ("The untouched base was not measured on these rows.",)

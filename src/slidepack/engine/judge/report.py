"""From what the voices made of the rows to figures, intervals, examples and sentences."""

from collections.abc import Callable, Mapping, Sequence

from slidepack.engine.contract.judgement import (
    Compared,
    Figure,
    FigureKind,
    JudgeReport,
    LabelCount,
    Measured,
    RowMark,
    Voice,
    VoiceName,
)
from slidepack.engine.judge.answers import normalised
from slidepack.engine.judge.examples import shown_examples
from slidepack.engine.judge.intervals import (
    clustered_mean,
    clustered_share,
    mcnemar,
    paired_difference,
    wilson,
)
from slidepack.engine.judge.questions import Questions
from slidepack.engine.judge.wording import loss_sentence, notes_on, share_sentence

__all__ = ["judge_report"]


Marks = Mapping[VoiceName, Sequence[RowMark]]
Hits = Mapping[VoiceName, Sequence[bool]]


def judge_report(
    questions: Questions,
    voices: Mapping[VoiceName, Voice | None],
    step: int,
    decode: Callable[[Sequence[int]], str],
    *,
    interrupted: bool = False,
) -> JudgeReport:
    """Return the report on some rows.

    Args:
        questions: what was asked.
        voices: what each made of it, in the order in which they are shown; None, and what was asked
            otherwise, is left out.
        step: steps behind the tuned model.
        decode: ids of an answer to its text, without what ends it.
        interrupted: some of it could not be measured.
    """
    asked = questions.digest
    marks: dict[VoiceName, Sequence[RowMark]] = {
        name: voice.rows
        for name, voice in voices.items()
        if voice is not None and voice.asked == asked
    }
    expected = [decode(row.short.expected) if row.short else "" for row in questions.rows]
    strict = _hits(questions, marks, lambda index, text: text == expected[index])
    loose = _hits(
        questions, marks, lambda index, text: normalised(text) == normalised(expected[index])
    )
    chosen = _chosen(questions, marks)
    figures = [
        _loss(marks),
        _token_accuracy(marks),
        _share("exact_match", strict),
        _share("exact_match_normalised", loose),
        _share("choice", chosen),
    ]
    return JudgeReport(
        step=step,
        split=questions.split,
        rows=len(questions.rows),
        short_rows=sum(row.short is not None for row in questions.rows),
        figures=tuple(figure for figure in figures if figure is not None),
        labels=_label_counts(questions, chosen),
        examples=shown_examples(questions, marks, expected, loose) if "tuned" in marks else (),
        notes=notes_on(questions, frozenset(marks), interrupted=interrupted),
    )


def _hits(questions: Questions, marks: Marks, is_right: Callable[[int, str], bool]) -> Hits:
    """Return which short rows each voice answered rightly; a voice that was not asked is left out.

    Args:
        questions: the rows.
        marks: of the voices.
        is_right: takes the number of a row, and an answer to it.
    """
    short = [index for index, row in enumerate(questions.rows) if row.short is not None]
    found: dict[VoiceName, Sequence[bool]] = {}
    for name, rows in marks.items():
        answers = [rows[index].answer for index in short]
        if all(answer is not None for answer in answers):
            pairs = zip(short, answers, strict=True)
            found[name] = [is_right(index, answer or "") for index, answer in pairs]
    return found if short else {}


def _chosen(questions: Questions, marks: Marks) -> Hits:
    """Return for which labelled rows each voice holds the right label most likely."""
    labelled = [
        (index, row.short.label)
        for index, row in enumerate(questions.rows)
        if row.short is not None and row.short.label is not None
    ]
    return {
        name: [rows[index].choice == label for index, label in labelled]
        for name, rows in marks.items()
        if labelled and all(rows[index].choice is not None for index, _ in labelled)
    }


def _share(kind: FigureKind, hits: Hits) -> Figure | None:
    if not hits:
        return None
    rows = len(next(iter(hits.values())))
    measured = tuple(
        Measured(voice=name, value=sum(one) / rows, low=low, high=high, right=sum(one))
        for name, one in hits.items()
        for low, high in (wilson(sum(one), rows),)
    )
    return Figure(
        kind=kind,
        rows=rows,
        of=rows,
        measured=measured,
        compared=tuple(
            _compare_shares(kind, name, hits)
            for name in hits
            if name != "tuned" and "tuned" in hits
        ),
    )


def _compare_shares(kind: FigureKind, against: VoiceName, hits: Hits) -> Compared:
    pairs = list(zip(hits[against], hits["tuned"], strict=True))
    gained, lost = pairs.count((False, True)), pairs.count((True, False))
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    low, high = paired_difference(both, gained, lost, neither)
    p = mcnemar(gained, lost)
    counts = (both + lost, both + gained, len(pairs))
    return Compared(
        against=against,
        difference=(gained - lost) / len(pairs),
        low=low,
        high=high,
        better=gained,
        worse=lost,
        p=p,
        sentence=share_sentence(
            kind, _first(hits, against), counts, better=gained, worse=lost, rows=len(pairs), p=p
        ),
    )


def _token_accuracy(marks: Marks) -> Figure | None:
    if not marks:
        return None
    counts = _tokens(marks)
    right = {name: [row.right for row in rows] for name, rows in marks.items()}
    measured = []
    for name, hits in right.items():
        share, (low, high) = clustered_share(hits, counts)
        measured.append(Measured(voice=name, value=share, low=low, high=high, right=sum(hits)))

    def told(against: VoiceName, better: int, worse: int, p: float) -> str:
        shares = (sum(right[against]), sum(right["tuned"]), sum(counts))
        return share_sentence(
            "token_accuracy",
            _first(marks, against),
            shares,
            better=better,
            worse=worse,
            rows=len(counts),
            p=p,
        )

    return Figure(
        kind="token_accuracy",
        rows=len(counts),
        of=sum(counts),
        measured=tuple(measured),
        compared=_compare_rows(right, counts, told),
    )


def _loss(marks: Marks) -> Figure | None:
    losses: dict[VoiceName, Sequence[float]] = {}
    for name, rows in marks.items():
        known = [row.loss for row in rows if row.loss is not None]
        if len(known) == len(rows):
            losses[name] = known
    if not losses:
        return None
    counts = _tokens(marks)
    means = {name: clustered_mean(one, counts) for name, one in losses.items()}

    def told(against: VoiceName, better: int, worse: int, p: float) -> str:
        return loss_sentence(
            _first(losses, against),
            means[against][0],
            means["tuned"][0],
            better=better,
            worse=worse,
            rows=len(counts),
            p=p,
        )

    return Figure(
        kind="loss",
        rows=len(counts),
        of=sum(counts),
        measured=tuple(
            Measured(
                voice=name,
                value=mean,
                low=None if interval is None else interval[0],
                high=None if interval is None else interval[1],
            )
            for name, (mean, interval) in means.items()
        ),
        compared=_compare_rows(losses, counts, told, lower_is_better=True),
    )


def _compare_rows(
    totals: Mapping[VoiceName, Sequence[float]],
    counts: Sequence[int],
    told: Callable[[VoiceName, int, int, float], str],
    *,
    lower_is_better: bool = False,
) -> tuple[Compared, ...]:
    """Compare sums over the tokens of each row; rows are what is independent."""
    compared = []
    for name in totals:
        if name == "tuned" or "tuned" not in totals:
            continue
        changes = [b - a for a, b in zip(totals[name], totals["tuned"], strict=True)]
        up, down = sum(one > 0 for one in changes), sum(one < 0 for one in changes)
        better, worse = (down, up) if lower_is_better else (up, down)
        difference, interval = clustered_mean(changes, counts)
        p = mcnemar(better, worse)
        compared.append(
            Compared(
                against=name,
                difference=difference,
                low=None if interval is None else interval[0],
                high=None if interval is None else interval[1],
                better=better,
                worse=worse,
                p=p,
                sentence=told(name, better, worse, p),
            )
        )
    return tuple(compared)


def _tokens(marks: Marks) -> list[int]:
    return [row.tokens for row in next(iter(marks.values()))]


def _first(voices: Mapping[VoiceName, object], against: VoiceName) -> VoiceName:
    """Return what the voice is for the reader: the base is `before` where nothing else is."""
    return "before" if against == "base" and "before" not in voices else against


def _label_counts(questions: Questions, chosen: Hits) -> tuple[LabelCount, ...]:
    if not chosen:
        return ()
    labelled = [
        row.short.label
        for row in questions.rows
        if row.short is not None and row.short.label is not None
    ]
    return tuple(
        LabelCount(
            label=text,
            rows=labelled.count(number),
            right={
                name: sum(hit for hit, label in zip(hits, labelled, strict=True) if label == number)
                for name, hits in chosen.items()
            },
        )
        for number, text in enumerate(questions.labels)
    )

"""What measured rows mean for a training: an error, warnings, or neither; and what would help."""

from collections.abc import Sequence
from typing import Final

from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.data.check import MAX_REJECTED_SHARE
from slidepack.engine.data.lengths import LengthReport, rounded_limit
from slidepack.engine.data.model_report import Fix, ModelDataReport
from slidepack.engine.data.report import Issue

__all__ = ["model_error", "model_fixes", "model_issues"]

_CUT_SHARE: Final = 0.01
"""Of the rows, above which a limit that is too short is a warning."""


def model_error(
    measured: ModelDataReport, fixes: Sequence[Fix], *, allow_rejects: bool
) -> ErrorReport | None:
    """Return why the rows are not to be trained on with this model and limit, or None.

    Args:
        measured: with the model's tokenizer.
        fixes: what would help.
        allow_rejects: the user bears that many rows are left out.
    """
    limit = measured.lengths.max_seq_len
    left_out = measured.rows - measured.encoded_rows
    seen = ", ".join(f"{reason} {count}" for reason, count in measured.rejects.items())
    changes = ", or ".join(f"{fix.setting} to {fix.value}" for fix in fixes)
    fix = f"Set {changes}." if changes else "Mend the rows named, or choose another model."
    if not measured.supervised_tokens:
        return SlidepackError(
            "DATA-NO-USABLE-ROWS",
            "No token of any row would be learned.",
            why=f"of {measured.rows} rows, with max_seq_len {limit}: {seen}",
            fix=fix,
        ).report
    if left_out > MAX_REJECTED_SHARE * measured.rows and not allow_rejects:
        return SlidepackError(
            "DATA-TOO-MANY-REJECTED",
            f"{left_out} of {measured.rows} rows would be left out with this model.",
            why=f"with max_seq_len {limit}: {seen}",
            fix=fix,
        ).report
    return None


def model_fixes(measured: ModelDataReport, max_positions: int) -> list[Fix]:
    """Return the settings with which more of the rows would be learned.

    Args:
        measured: with the model's tokenizer.
        max_positions: the most tokens of a row that the model takes.
    """
    lengths = measured.lengths
    if not lengths.rows_over:
        return []
    longer = _longer_limit(lengths, max_positions)
    policies = [
        Fix(
            setting="too_long",
            value=policy,
            why=f"it keeps something of {kept} of the {measured.retried} rows tried",
        )
        for policy, kept in measured.kept_by.items()
    ]
    return [*longer, *sorted(policies, key=lambda fix: str(fix.value), reverse=True)]


def _longer_limit(lengths: LengthReport, most: int) -> list[Fix]:
    wanted = lengths.suggested
    why = "it holds 99% of the rows"
    if wanted <= lengths.max_seq_len:
        wanted, why = rounded_limit(lengths.longest), "it holds all rows"
    if wanted > most:
        wanted, why = most, "it is the most that the model takes"
    if wanted < lengths.shortest_over:
        return []
    return [Fix(setting="max_seq_len", value=wanted, why=why)]


def model_issues(measured: ModelDataReport) -> list[Issue]:
    """Return what the user should look at."""
    lines: dict[str, int] = {}
    for reject in measured.first_rejects:
        lines.setdefault(reject.reason, reject.line)
    found = [
        Issue(
            line=lines[reason],
            code=reason,
            message=f"{_rows(count)} left out with this model",
            level="reject",
            count=count,
        )
        for reason, count in measured.rejects.items()
    ]
    found += [
        Issue(
            line=lines[reason],
            code=reason,
            message=f"{_rows(count)} left out in part with this model",
            count=count,
        )
        for reason, count in measured.partly.items()
    ]
    lengths = measured.lengths
    if lengths.share_of_rows_over > _CUT_SHARE:
        lost = lengths.tokens_over if measured.too_long == "cut" else lengths.tokens_in_rows_over
        found.append(
            Issue(
                line=0,
                code="rows-too-long",
                message=f"{lengths.share_of_rows_over:.1%} of the rows are longer than "
                f"{lengths.max_seq_len} tokens, with {lost / max(1, lengths.tokens):.1%} of all "
                "tokens",
                count=lengths.rows_over,
            )
        )
    if measured.template_reason:
        found.append(Issue(line=0, code="named-template", message=measured.template_reason))
    if measured.masks.conversations and measured.masks.method == "none":
        found.append(
            Issue(
                line=0,
                code="masks-not-verified",
                message="the template gives nothing to find answers by in a second way",
            )
        )
    return found


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count} rows are"

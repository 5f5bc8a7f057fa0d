"""What measured rows mean for a training: an error, warnings, or neither. Torch-free."""

from typing import Final

from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.data.check import MAX_REJECTED_SHARE
from slidepack.engine.data.model_report import ModelDataReport
from slidepack.engine.data.report import Issue

__all__ = ["model_error", "model_issues"]

_CUT_SHARE: Final = 0.01
"""Of the rows, above which a limit that is too short is a warning."""


def model_error(measured: ModelDataReport, *, allow_rejects: bool) -> ErrorReport | None:
    """Return why the rows are not to be trained on with this model and limit, or None.

    Args:
        measured: with the model's tokenizer.
        allow_rejects: the user bears that many rows are left out.
    """
    limit = measured.lengths.max_seq_len
    left_out = measured.rows - measured.encoded_rows
    seen = ", ".join(f"{reason} {count}" for reason, count in measured.rejects.items())
    fix = "Mend the rows named, or choose another model."
    if measured.rejects.get("too-long"):
        fix = f"Use --max-seq-len {measured.lengths.suggested}, or --too-long cut or split."
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
            fix=f"{fix} Or take the rest with --allow-rejects.",
        ).report
    return None


def model_issues(measured: ModelDataReport) -> list[Issue]:
    """Return what the user should look at."""
    found = [
        Issue(
            line=next((one.line for one in measured.first_rejects if one.reason == reason), 0),
            code=reason,
            message=f"{count} rows are left out with this model",
            level="reject",
            count=count,
        )
        for reason, count in measured.rejects.items()
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

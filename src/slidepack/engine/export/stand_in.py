"""A template that stands in for a base model's own goes with the result, or nobody can ask it."""

import json
from pathlib import Path

import msgspec

__all__ = ["write_stand_in"]


def write_stand_in(folder: Path, template: str, end_ids: frozenset[int]) -> None:
    """Write the template into a result folder, and where its answers end.

    Args:
        folder: of a model or an adapter.
        template: Jinja.
        end_ids: tokens with which it ends answers.

    Raises:
        OSError: the disk refused.
    """
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    path = folder / "generation_config.json"
    if not end_ids or not (folder / "config.json").exists():
        # Of an adapter the base's own file counts.
        return
    known: dict[str, object] = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    before = known.get("eos_token_id")
    ids = before if isinstance(before, list) else [before]
    known["eos_token_id"] = sorted(end_ids.union(one for one in ids if isinstance(one, int)))
    path.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")

"""What the probe says about an item that it could not read."""

import msgspec


class ProbeProblem(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="problem",
):
    """Stands in the report in place of an item that could not be read."""

    item: str
    """The item's field name in `HardwareReport`."""
    what: str
    """What could not be read, in one sentence."""
    why: str
    """The evidence, as the library or the kernel put it."""
    fix: str
    """What the user can do next."""


class ProbeFailure(Exception):
    """Raised by a reader that knows why its item cannot be read, and what helps."""

    def __init__(self, what: str, *, why: str, fix: str) -> None:
        """Keep the three texts; the report adds the item's name."""
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

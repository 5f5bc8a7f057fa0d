"""Foreign files and second copies that stand in front of the packages that runs import."""

from collections.abc import Iterator, Sequence

from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.probe.packages import OURS, PackageCopy, Packages
from slidepack.daemon.probe.setup import SetupReport


def package_findings(setup: SetupReport) -> Iterator[Finding]:
    """Judge what `import` finds first."""
    packages = setup.packages
    if not isinstance(packages, Packages):
        return
    for name in OURS:
        copies = [copy for copy in packages.copies if copy.name == name]
        yield from _in_cwd([copy for copy in copies if copy.place == "cwd"])
        searched = [copy for copy in copies if copy.place != "cwd"]
        if searched:
            yield from _first(searched[0], searched[1:])
            yield from _twins(searched)
    for path in packages.hidden_stdlib:
        yield Finding(
            level="problem",
            title="A file hides a module of Python's own.",
            evidence=f"{path} is in PYTHONPATH, in front of everything.",
            fix="Rename it, or unset PYTHONPATH.",
        )
    if packages.leftovers:
        yield Finding(
            level="note",
            title="An interrupted pip left files behind.",
            evidence=f"{', '.join(packages.leftovers)}.",
            fix="Delete these folders, then install the package again if it misbehaves.",
        )


def _in_cwd(copies: Sequence[PackageCopy]) -> Iterator[Finding]:
    for copy in copies:
        yield Finding(
            level="note",
            title=f"Something here is named like {copy.name}.",
            evidence=f"{copy.path}: `python -m …` and `python -c …` in this folder import it "
            f"instead of {copy.name}. The daemon and its workers do not look here.",
            fix="Rename it, or work in another folder.",
        )


def _first(first: PackageCopy, behind: Sequence[PackageCopy]) -> Iterator[Finding]:
    if first.place == "pythonpath" and not first.installed_as:
        hidden = f"; the installed one is {behind[0].path}" if behind else ""
        yield Finding(
            level="problem",
            title=f"A foreign {first.name} is imported instead of the installed one.",
            evidence=f"{first.path} is in PYTHONPATH{hidden}. No installed package brought it.",
            fix="Rename it, or unset PYTHONPATH and start the daemon anew.",
        )
    elif first.place in ("pythonpath", "user", "other"):
        other = next((c for c in behind if c.place == "python"), None)
        if other is not None and other.installed_as != first.installed_as:
            where = {"pythonpath": "PYTHONPATH", "user": "your user folder"}
            yield Finding(
                level="note",
                title=f"There are two copies of {first.name}, and runs take the outer one.",
                evidence=f"{_named(first)} comes from {where.get(first.place, 'outside')} and "
                f"stands in front of {_named(other)}.",
                fix=f"Remove one: `{_removal(first)}`.",
            )


def _twins(copies: Sequence[PackageCopy]) -> Iterator[Finding]:
    for copy in copies:
        if len(copy.installed_as) > 1:
            names = [installed.split(" ")[0].replace("_", "-") for installed in copy.installed_as]
            unique = " ".join(dict.fromkeys(names))
            yield Finding(
                level="note",
                title=f"Two installs of {copy.name} lie in one folder.",
                evidence=f"{', '.join(copy.installed_as)} in {copy.path}: their files are mixed.",
                fix=f"`pip uninstall -y {unique}` until none is left, then install the one that "
                "you want.",
            )


def _named(copy: PackageCopy) -> str:
    return f"{', '.join(copy.installed_as) or 'one that no package brought'} in {copy.path}"


def _removal(copy: PackageCopy) -> str:
    if copy.place == "pythonpath":
        return "unset PYTHONPATH"
    names = " ".join(installed.split(" ")[0].replace("_", "-") for installed in copy.installed_as)
    return f"pip uninstall {names}" if names else f"rm -r {copy.path}"

"""What a daemon misses that may not look into other users' programs, in words. Pure."""

from collections.abc import Iterable

from slidepack.daemon.policy.process_table import Sight
from slidepack.daemon.policy.rules import COMMAND_PREFIX, Policy
from slidepack.daemon.probe.gpu import Gpu


def blind_spots(policy: Policy, sight: Sight, gpus: Iterable[Gpu]) -> str:
    """Return what of the policy's own wishes is not seen; empty where all is.

    A name and a command line are there for everybody to read. The environment, in which GameMode
    shows, the program's path, and who holds an AMD card are not.

    Args:
        policy: what is wished.
        sight: what of others' programs this daemon may see.
        gpus: the cards.
    """
    if sight == "own" and (policy.detect_games or policy.exclusive_apps):
        return (
            "other users' programs are not seen, games neither: this system hides them from this "
            "service (hidepid)"
        )
    missed = [] if sight == "all" else _missed(policy, gpus)
    if not missed:
        return ""
    *most, last = missed
    return (
        f"{', '.join(most)}{' and ' if most else ''}{last} are not seen: this service may not look "
        "into other users' programs; games of Steam and programs that are listed by name are"
    )


def _missed(policy: Policy, gpus: Iterable[Gpu]) -> list[str]:
    missed = []
    if policy.detect_games:
        missed.append("games that GameMode started")
    if any("/" in p and not p.startswith(COMMAND_PREFIX) for p in policy.exclusive_apps):
        missed.append("programs that are listed by their path")
    if policy.foreign_gpu_percent and any(gpu.vendor == "amd" for gpu in gpus):
        missed.append("loads that other programs put on AMD cards")
    return missed

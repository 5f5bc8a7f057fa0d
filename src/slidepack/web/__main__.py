"""The daemon process: `python -m slidepack.web`. Small on purpose: it holds no command line."""

import logging
import os
import sys
from collections.abc import Sequence

from slidepack.daemon.paths import DataPaths
from slidepack.daemon.settings import data_home, load_settings
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.server import serve


def main() -> int:
    """Run the daemon; return the exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    try:
        settings = load_settings()
        serve(DataPaths(data_home(os.environ)), settings, _announce)
    except SlidepackError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _announce(link: str, elsewhere: Sequence[str]) -> None:
    # A service's output is kept, and read by others: a link has no place in it.
    if "JOURNAL_STREAM" in os.environ:
        sys.stdout.write("Slidepack is ready. Log in with `slidepack open`.\n")
    else:
        sys.stdout.write(f"Slidepack is ready. Open this link, it logs one browser in:\n{link}\n")
    if elsewhere:
        sys.stdout.write(f"On other machines, with the password: {', '.join(elsewhere)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""The daemon process: `python -m slidepack.web`. Small on purpose: it holds no command line."""

import logging
import os
import sys

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


def _announce(link: str) -> None:
    sys.stdout.write(f"Slidepack is ready. Open this link, it logs one browser in:\n{link}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""The `slidepack` script: small, so that Ctrl-C is taken care of before the libraries load."""

import runpy
import signal


def main() -> None:
    """Hold Ctrl-C back while the command line loads, then run it; `run` lets it through again."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    runpy.run_module("slidepack.cli", run_name="__main__")

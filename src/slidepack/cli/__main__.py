"""The command line as a module: `python -m slidepack.cli`."""

from slidepack.cli.main import main

main()

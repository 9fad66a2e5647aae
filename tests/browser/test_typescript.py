"""The extension's own checks: strict types, eslint and format; and its unit tests under vitest."""

from __future__ import annotations

from pathlib import Path

import front_end
import pytest


@pytest.mark.essential
@pytest.mark.parametrize("name", front_end.CHECKS)
def test_typescript(name: str, labextension: Path) -> None:
    try:
        front_end.check(name, quiet=True)
    except front_end.FrontEndError as error:
        pytest.fail(str(error), pytrace=False)

"""``python -m fusion_advisor``: the command line."""

from __future__ import annotations

import sys

from fusion_advisor.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m elmo`` is the command ``elmo``."""

from __future__ import annotations

import sys

from elmo.cli import main

sys.exit(main())

"""Reports of a run in, lines of ``log.jsonl`` out; cut back to a checkpoint when the run goes on from it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elmo.embed.atomic import cannot_write
from elmo.formats.files import shown, sync

_log = logging.getLogger(__name__)


class RunLog:
    """A growing file of JSON lines, the same for every run of the same command: no times are in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, values: Mapping[str, Any]) -> None:
        """Append a line."""
        try:
            with self.path.open("a", encoding="ascii") as file:
                file.write(json.dumps(dict(values)) + "\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def kept_bytes(self) -> int:
        """Its size, once it is on the disk: no power cut may leave less than a checkpoint knows of."""
        try:
            sync(self.path)
            return self.path.stat().st_size
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def cut(self, n_bytes: int) -> None:
        """Forget what was added after it had so many bytes; 0 begins a new log."""
        try:
            with self.path.open("ab") as file:
                found = file.seek(0, os.SEEK_END)
                if found < n_bytes:  # to fill it up with zeros would make it unreadable
                    _log.warning("%s: lines are missing at its end; going on without them", shown(self.path))
                file.truncate(min(found, n_bytes))
        except OSError as error:
            raise cannot_write(self.path, error) from error

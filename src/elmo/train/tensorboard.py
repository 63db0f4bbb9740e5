"""Reports of a run in, event files that TensorBoard shows out: one curve a figure, by tokens read."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from elmo.errors import MissingExtraError
from elmo.storage.atomic import cannot_write

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from elmo.train.log import Entry
    from elmo.train.loop import Report

TAGS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "heldout_forward": "heldout/forward",
    "heldout_backward": "heldout/backward",
}


class TensorBoard:
    """Give it to a run as ``on_report``, and its folder to ``tensorboard --logdir``.

    A run that goes on after a checkpoint reports again what it had reported after it: the first report of a
    new process takes back all that earlier ones wrote for its step and later steps.
    """

    def __init__(self, folder: str | Path) -> None:
        """Nothing is written before the first report, but a library that is missing is told at once."""
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("TensorBoard", extra="tensorboard") from error
        self._folder = Path(folder)
        self._writer: SummaryWriter | None = None

    def __call__(self, report: Report | Entry) -> None:
        """Write a report; it is in the file on return, so that no checkpoint comes before its reports."""
        step = report.step * report.n_tokens
        try:
            if self._writer is None:
                self._writer = self._open(first_step=step)
            for name, tag in TAGS.items():
                value = getattr(report, name, None)
                if value is not None:
                    self._writer.add_scalar(tag, value, step)
            self._writer.flush()
        except OSError as error:
            raise cannot_write(self._folder, error) from error

    def close(self) -> None:
        """Let the file go."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, first_step: int) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(self._folder), purge_step=first_step)
        weakref.finalize(self, writer.close)  # of a run that nobody closed, at the latest as Python ends
        return writer

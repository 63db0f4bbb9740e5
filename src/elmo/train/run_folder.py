"""The place of a model in, the folder of the run that makes it out: held by one process, and what is there.

``OUT.training`` keeps corpus, recipe, plan, checkpoints and log. A run has begun when it has a checkpoint;
then who asks for something else changes nothing of it. Its recipe never lies beside the corpus of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elmo.embed.atomic import locked
from elmo.errors import ConfigError, DataError, ElmoError, FormatError, OutputError
from elmo.formats import native
from elmo.formats.files import reason, shown, sync
from elmo.text.lines import expand
from elmo.train.checkpoint import Checkpoints
from elmo.train.corpus_folder import MANIFEST, read_manifest
from elmo.train.export import is_finished
from elmo.train.log import SUFFIX
from elmo.train.recipe import NAME, Recipe

_LOCK = ".run.lock"
_NEXT = "resume it (--resume), or name another place (--out) to start anew"


class RunFolder:
    """Where the run of the model ``out`` keeps what it needs to go on."""

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        named = self.out if self.out.name not in ("", "..") else self.out.resolve()
        if not named.name:
            raise OutputError(f"{shown(self.out)}: exists already; name a new folder")
        self.path = named.with_name(f"{named.name}{SUFFIX}")
        self.corpus = self.path / "corpus"
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    @property
    def has_corpus(self) -> bool:
        """Whether a whole one is there."""
        return (self.corpus / MANIFEST).is_file()

    @property
    def has_begun(self) -> bool:
        """Whether there is something to lose."""
        return bool(self.checkpoints.steps())

    def recipe(self) -> Recipe | None:
        """What the run there was asked for."""
        return Recipe.read(self.path) if (self.path / NAME).is_file() else None

    def refuse_what_is_no_run(self) -> None:
        """``OutputError`` when something stands in the model's place that no run here can have written."""
        if self._is_taken() and not (self.path / NAME).is_file():
            raise self._exists_already()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder and let no other process in; what stayed empty is gone afterwards."""
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(f"{shown(self.path)}: cannot be made: {reason(error)}") from error
            with locked(self.path / _LOCK, subject=self.out):
                yield
        finally:
            with suppress(OSError):  # innermost first, up to one that holds something
                for folder in made:
                    folder.rmdir()

    def is_done(self, recipe: Recipe) -> bool:
        """Whether the model stands, written by this very run; ``OutputError`` when another stands there.

        A process may be killed when its last act, the model, is done: the same command again is content.
        """
        if not self._is_taken():
            return False
        try:
            before = self.recipe()
            is_ours = before is not None and not before.differences(recipe) and native.is_here(self.out)
            if is_ours and is_finished(native.read(self.out), self.checkpoints):
                return True
        except (FormatError, ConfigError) as error:  # damaged, or of another version
            raise self._exists_already() from error
        raise self._exists_already()

    def refuse_another(self, recipe: Recipe) -> None:
        """``ConfigError`` when the run that has begun here was asked for something else, or of other text."""
        before = self.recipe() if self.has_begun else None
        if before is None:
            return
        if found := before.differences(recipe):
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            raise ConfigError(
                f"{shown(self.out)}: a run was begun there with another {', '.join(found[:3])}{more}; {_NEXT}"
            )
        if (changed := self._changed_text(recipe)) is not None:
            raise ConfigError(
                f"{shown(self.out)}: the text of the run that was begun there has changed since ({changed}); "
                f"{_NEXT}"
            )

    @contextmanager
    def keeping(self, recipe: Recipe) -> Iterator[None]:
        """Keep the recipe beside the corpus that is built inside; what is refused there changes nothing."""
        try:
            before = self.recipe()
        except (FormatError, ConfigError):  # no run can go on by it
            before = None
        is_fit = not self.has_corpus or (before is not None and before.has_the_text_of(recipe))
        if not is_fit:
            (self.path / NAME).unlink(missing_ok=True)
            sync(self.path)
        elif before is None or before.differences(recipe):
            recipe.write(self.path)
        try:
            yield
        except ElmoError:
            with suppress(OutputError):
                if before is None:
                    (self.path / NAME).unlink(missing_ok=True)
                else:
                    before.write(self.path)
            raise
        if not is_fit:
            recipe.write(self.path)

    def _is_taken(self) -> bool:
        return self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir()))

    def _exists_already(self) -> OutputError:
        return OutputError(f"{shown(self.out)}: exists already; name a new folder, or remove it first")

    def _changed_text(self, recipe: Recipe) -> str | None:
        """The first file that is not as it was when the corpus was built; of stdin nobody can tell."""
        if not self.has_corpus:
            return None
        try:
            kept = read_manifest(self.corpus).inputs
        except DataError:  # damaged: it is built again, of the same text or in vain
            return None
        heldout = recipe.corpus_options.get("heldout_inputs") or ()
        named = [*recipe.inputs, *([heldout] if isinstance(heldout, str | Path) else heldout)]
        found = expand([str(path) for path in named])
        if len(found) != len(kept):
            return f"{len(kept)} files then, {len(found)} now"
        for file, then in zip(found, kept, strict=True):
            if file == "-" or then["path"] == "-":
                continue
            now = file.stat()
            if (now.st_size, now.st_mtime_ns) != (then["size"], then["mtime_ns"]):
                return shown(file)
        return None

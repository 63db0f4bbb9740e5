"""The name of a bundled model in, its folder out: ``en`` or ``zh``, each trained by a command in ``recipes``.

Each folder is in elmo's own format, with its card: data, licences, recipe, scores, limits.
"""

from __future__ import annotations

from pathlib import Path

from elmo.errors import ConfigError

DEFAULT = "en"


def names() -> tuple[str, ...]:
    """The models that came with this installation, the default one first."""
    found = sorted(path.parent.name for path in _HERE.glob("*/config.json"))
    return tuple(sorted(found, key=lambda name: name != DEFAULT))


def folder(name: str = DEFAULT) -> Path:
    """Where a bundled model is."""
    found = names()
    if not found:
        raise ConfigError(
            "no model is bundled yet: give a path, or a Hub id such as org/name (in the shell by --model, or "
            "once for all in the variable ELMO_MODEL)"
        )
    if name not in found:
        raise ConfigError(f"no model {name[:40]!r} is bundled; those that are: {', '.join(found)}")
    return _HERE / name


_HERE = Path(__file__).resolve().parent

"""The bundled models: ``en`` and ``zh``, each trained by a command in ``recipes``.

Each folder is in elmo's own format, with a model card: data, licenses, recipe, scores, limits.
"""

from __future__ import annotations

from pathlib import Path

from elmo.errors import ConfigError

DEFAULT = "en"
_FOLDER = Path(__file__).resolve().parent


def names() -> tuple[str, ...]:
    """Return the names of the bundled models, the default first."""
    bundled = sorted(path.parent.name for path in _FOLDER.glob("*/config.json"))
    return tuple(sorted(bundled, key=lambda name: name != DEFAULT))


def folder(name: str = DEFAULT) -> Path:
    """Return the folder of a bundled model."""
    bundled = names()
    if not bundled:
        raise ConfigError(
            "no model is bundled with this installation; pass a path or a Hub id such as org/name (on the "
            "command line with --model, or in the variable ELMO_MODEL)"
        )
    if name not in bundled:
        raise ConfigError(f"unknown bundled model {name[:40]!r}; expected one of {', '.join(bundled)}")
    return _FOLDER / name

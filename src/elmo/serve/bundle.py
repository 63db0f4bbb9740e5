"""Combine the ES modules of the page into one script, and write files as text that a script can contain.

Browsers load neither modules nor workers, and allow no requests, if a page is opened from disk. They do run classic
scripts. An exported site therefore has one script with all modules, a worker that starts from text, and data files that
are scripts or, in a single file, elements of the page.

Only the forms of ``import`` and ``export`` that the modules of ``static/`` use are supported; others raise an error:

- ``import {a, b as c} from "./x.js";`` and ``import a from "./x.js";``, each on its own line
- ``await import("./x.js")``
- ``export`` before a function, class, constant or default value, at the start of a line
- ``export {a, b as c};`` as the last statement
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from elmo.errors import FormatError

_NAME = r"[A-Za-z_$][\w$]*"
_IMPORT = re.compile(rf'^import (?:\{{([^{{}}]*)\}}|({_NAME})) from "(\.[^"\n]*)";$', re.MULTILINE)
_DYNAMIC = re.compile(r'\bawait import\("(\.[^"\n]*)"\)')
_EXPORT = re.compile(rf"^export ((?:async )?function\*?|class|const) ({_NAME})", re.MULTILINE)
_DEFAULT = re.compile(r"^export default ", re.MULTILINE)
_LIST = re.compile(r"(?:^|(?<=;))export\s*\{([^{}]*)\};?\s*(?://[^\n]*\s*)?\Z", re.MULTILINE)
_LEFT = re.compile(r"^\s*(?:import|export)\b.*|;export\b.{0,40}", re.MULTILINE)
_MODULE = "(exports, require) => {{\n{source}\n}}"
_LOADER = """\
(() => {{
"use strict";
const modules = {{
{modules}
}};
const loaded = {{}};
const require = (name) => {{
  if (!(name in loaded)) modules[name](loaded[name] = {{}}, require);
  return loaded[name];
}};
require("{entry}");
}})();
"""


def bundle_modules(entry: str, folder: Path) -> str:
    """Return one script that runs a module and all modules that it imports.

    Args:
        entry: Path of the first module in ``folder``, such as ``app.js``.
        folder: Folder of the modules.
    """
    sources: dict[str, str] = {}
    visiting: list[str] = []

    def add(name: str) -> None:
        if name in sources:
            return
        if name in visiting:
            raise FormatError(f"modules must not import each other in a circle; found {' → '.join([*visiting, name])}")
        visiting.append(name)
        later: list[str] = []
        source = convert_module(
            (folder / name).read_text(encoding="utf-8"), name, on_import=add, on_dynamic=later.append
        )
        visiting.pop()
        sources[name] = source
        for module in later:  # loaded when the statement runs, so it may import this module
            add(module)

    add(entry)
    modules = ",\n".join(f'"{name}": {_MODULE.format(source=source)}' for name, source in sources.items())
    return _LOADER.format(modules=modules, entry=entry)


def convert_module(
    source: str, name: str, *, on_import: Callable[[str], None], on_dynamic: Callable[[str], None]
) -> str:
    """Return a module as the body of a function with the parameters ``exports`` and ``require``.

    Args:
        source: The text of the module.
        name: Its path, for relative imports and messages.
        on_import: Called with the path of each module that is imported before this one runs.
        on_dynamic: Called with the path of each module that is imported later.
    """
    exports: list[str] = []

    def resolve(path: str) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if target.startswith(".."):
            raise FormatError(f"{name}: an import must stay in its folder; found {path!r}")
        return target

    def convert_import(match: re.Match[str]) -> str:
        names, default, path = match.groups()
        target = resolve(path)
        on_import(target)
        if default is not None:
            return f'const {{ default: {default} }} = require("{target}");'
        return f'const {{ {_convert_names(names, ": ")} }} = require("{target}");'

    def convert_dynamic(match: re.Match[str]) -> str:
        target = resolve(match[1])
        on_dynamic(target)
        return f'(await null, require("{target}"))'  # not before the modules that run now have ended

    def convert_export(match: re.Match[str]) -> str:
        exports.append(f"exports.{match[2]} = {match[2]};")
        return f"{match[1]} {match[2]}"

    def convert_list(match: re.Match[str]) -> str:
        for pair in match[1].split(","):
            local, _, exported = pair.strip().partition(" as ")
            exports.append(f"exports.{exported or local} = {local};")
        return ""

    source = _LIST.sub(convert_list, source)
    source = _IMPORT.sub(convert_import, source)
    source = _DYNAMIC.sub(convert_dynamic, source)
    source = _EXPORT.sub(convert_export, source)
    source = _DEFAULT.sub("exports.default = ", source)
    if left := _LEFT.search(source):
        raise FormatError(f"{name}: unsupported statement: {left[0].strip()[:80]!r}")
    return "\n".join([source.rstrip("\n"), *exports])


def _convert_names(names: str, separator: str) -> str:
    """Convert ``a, b as c`` to ``a, b: c``."""
    return ", ".join(separator.join(name.strip().split(" as ")) for name in names.split(",") if name.strip())


# --- Bytes as text -------------------------------------------------------------------------------------

# Two bytes are one UTF-16 unit. Units that HTML or JavaScript would change or read as code are written as "~" and the
# unit with its highest bit inverted.
_ESCAPE = ord("~")
_FLIP = 0x8000
_IS_ESCAPED = np.zeros(1 << 16, dtype=bool)
_IS_ESCAPED[[ord(character) for character in '\0\n\r"<\\~']] = True
_IS_ESCAPED[0xD800:0xE000] = True  # surrogates


def encode_text(content: bytes) -> str:
    """Write bytes as text for an element of a page or a string of a script; ``local.js`` decodes it.

    Random bytes need 3% more space in UTF-16 than before. An odd number of bytes is padded with a zero byte.
    """
    units = np.frombuffer(content + b"\0" * (len(content) % 2), dtype="<u2")
    is_escaped = _IS_ESCAPED[units]
    ends = np.cumsum(1 + is_escaped)
    text = np.full(int(ends[-1]) if len(ends) else 0, _ESCAPE, dtype="<u2")
    text[ends - 1] = np.where(is_escaped, units ^ _FLIP, units)
    return text.tobytes().decode("utf-16-le")

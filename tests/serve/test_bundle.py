"""One script from the modules of the page, and files as text."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import FormatError
from elmo.serve.bundle import bundle_modules, encode_text

STATIC = Path(__file__).parents[2] / "src" / "elmo" / "serve" / "static"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")


def write(folder: Path, modules: Mapping[str, str]) -> Path:
    for name, source in modules.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source, encoding="utf-8")
    return folder


def run(script: str) -> str:
    result = subprocess.run([str(NODE), "-"], input=script, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@needs_node
def test_modules_run_once_and_in_the_order_of_their_imports(tmp_path: Path) -> None:
    write(tmp_path, {
        "app.js": 'import { one } from "./x.js";\nimport view from "./views/view.js";\n'
        'import { two as second } from "./views/two.js";\nconsole.log(one(), view.name, second);\n',
        "x.js": 'console.log("x");\nexport function one() {\n  return 1;\n}\n',
        "views/view.js": 'import { one } from "../x.js";\nexport default { name: `view ${one()}` };\n',
        "views/two.js": "const a = 2, b = 3;export{a as two,b};\n//# sourceMappingURL=two.js.map\n",
    })  # fmt: skip
    assert run(bundle_modules("app.js", tmp_path)).splitlines() == ["x", "1 view 1 2"]


@needs_node
def test_a_module_that_is_imported_later_may_import_the_first(tmp_path: Path) -> None:
    write(tmp_path, {
        "api.js": 'export class Api {}\nexport async function create() {\n'
        '  const { make } = await import("./local.js");\n  return make();\n}\n'
        'create().then((api) => console.log(api instanceof Api));\n',
        "local.js": 'import { Api } from "./api.js";\nexport const make = () => new Api();\n',
    })  # fmt: skip
    assert run(bundle_modules("api.js", tmp_path)) == "true"


@pytest.mark.parametrize("statement", [
    'import * as all from "./x.js";', 'import "./x.js";', 'import a, { b } from "./x.js";', "export let a = 1;",
    'export * from "./x.js";', 'import { a } from "package";', '  export const a = 1;',
])  # fmt: skip
def test_other_forms_of_import_and_export_are_refused(tmp_path: Path, statement: str) -> None:
    write(tmp_path, {"app.js": f"{statement}\nconsole.log(1);\n", "x.js": "export const a = 1;\n"})
    with pytest.raises(FormatError, match=r"app.js: unsupported statement"):
        bundle_modules("app.js", tmp_path)


def test_circles_and_files_outside_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'})
    with pytest.raises(FormatError, match=r"a.js → b.js → a.js"):
        bundle_modules("a.js", tmp_path)
    write(tmp_path, {"c.js": 'import { x } from "../x.js";\n'})
    with pytest.raises(FormatError, match=r"must stay in its folder"):
        bundle_modules("c.js", tmp_path)


@needs_node
@pytest.mark.parametrize("entry", ["app.js", "local-worker.js"])
def test_the_modules_of_the_page_are_one_valid_script(entry: str, tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text(bundle_modules(entry, STATIC), encoding="utf-8")
    subprocess.run([str(NODE), "--check", str(script)], check=True, timeout=60)


def decode(text: str, n_bytes: int) -> bytes:
    """Decode as ``local.js`` does."""
    units, rest = bytearray(), iter(text)
    for character in rest:
        unit = ord(next(rest)) ^ 0x8000 if character == "~" else ord(character)
        units += unit.to_bytes(2, "little")
    return bytes(units[:n_bytes])


@given(st.binary(max_size=200))
def test_bytes_are_text_without_characters_that_a_page_would_change(content: bytes) -> None:
    text = encode_text(content)
    assert decode(text, len(content)) == content
    assert not set(text) & set('\0\r\n"<\\')
    assert text.encode("utf-16-le").decode("utf-16-le") == text  # no surrogates


@needs_node
def test_every_unit_is_decoded_by_the_page() -> None:
    content = b"".join(unit.to_bytes(2, "little") for unit in range(1 << 16)) + b"x"
    script = f"""
import({json.dumps((STATIC / "local.js").as_uri())}).then(({{ decodeText }}) => {{
  const bytes = decodeText({json.dumps(encode_text(content))}, {len(content)});
  const isEqual = bytes.every((byte, k) => byte === (k === 131072 ? 120 : k % 2 ? k >> 9 : (k >> 1) & 255));
  let message = "";
  try {{ decodeText("ab", 2); }} catch (error) {{ message = error.message; }}
  console.log(bytes.length, isEqual, message);
}});
"""
    assert run(script) == f"{len(content)} true a file of this page is damaged; export it again"

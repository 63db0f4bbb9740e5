"""Write the reference pages: the command line from its options, the Python interface from signatures and docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import typer

from elmo.cli.app import build_app

_CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)
_DIRECTIVE = re.compile(r" *# doctest:.*")
_NOTE = (
    "In the examples, `elmo` is a loaded model, `Elmo.from_pretrained()`; other names are imported from this package "
    "or from `elmo`, and `np` is NumPy. `tests/docs/test_docstrings.py` runs them in a folder with the files they name."
)


def write_pages(source: Path, target: Path) -> None:
    """Write one page for the command line and one for each public package below ``source``."""
    target.mkdir(parents=True, exist_ok=True)
    (target / "cli.md").write_text("\n".join(describe_commands()) + "\n", encoding="utf-8")
    package = load_package(source)
    pages = {name: public_objects(package, name) for name in public_packages(source)}
    homes = {path: name for name in reversed(pages) for path in pages[name].values()}
    homes |= {obj: name for name in pages if name != "elmo" for obj in pages[name].values()}
    for name, objects in pages.items():
        lines = describe_package(package, name, objects, homes)
        (target / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


# The Python interface


def load_package(source: Path) -> griffe.Module:
    """Read the package without importing it."""
    loaded = griffe.load("elmo", search_paths=[source], docstring_parser=griffe.Parser.google, allow_inspection=False)
    assert isinstance(loaded, griffe.Module)
    return loaded


def public_packages(source: Path) -> list[str]:
    """Return the packages that list public names, ``elmo`` first."""
    stubs = sorted((source / "elmo").rglob("__init__.pyi"), key=lambda stub: (len(stub.parts), stub))
    return [".".join(stub.parent.relative_to(source).parts) for stub in stubs]


def public_objects(package: griffe.Module, name: str) -> dict[str, str]:
    """Return the public names of a package, and the path of the object that each one means."""
    module = package if name == "elmo" else package[name.partition(".")[2]]
    exported = [str(item) for item in module.exports or []]
    return {item: module.members[item].canonical_path for item in exported}


def describe_package(
    package: griffe.Module, name: str, objects: dict[str, str], homes: dict[str, str]
) -> Iterator[str]:
    """Yield the lines of the page of a package."""
    module = package if name == "elmo" else package[name.partition(".")[2]]
    text = module.docstring.value.split("\n\n")[0] if module.docstring else ""
    yield from [f"# {name}", "", escape(text), "", _NOTE, "", "| name | description |", "|---|---|"]
    for item, path in objects.items():
        home = homes[path]
        link = f"#{item.lower()}" if home == name else f"{home}.md#{item.lower()}"
        yield f"| [`{item}`]({link}) | {cell(summary(package[path.partition('.')[2]]))} |"
    users = find_users(package, homes)
    for item, path in objects.items():
        if homes[path] == name:
            links = [f"[`{user}`]({homes[of]}.md#{user.lower()})" for user, of in users[path][:4]]
            note = f"Used by {', '.join(links)}." if links else ""
            yield from describe_object(package[path.partition(".")[2]], item, level=2, note=note)


def find_users(package: griffe.Module, homes: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Return which public functions and classes return, contain or accept each class: their names and paths.

    Functions that return the class come first. Classes with an example do not need these links.
    """
    users: dict[str, set[tuple[int, str, str]]] = {path: set() for path in homes}
    for path in homes:
        obj: Any = package[path.partition(".")[2]]
        if obj.is_attribute:
            continue
        members = [obj, *(member for name, member in obj.members.items() if not name.startswith("_"))]
        annotations = [(0, member.returns) for member in members if member.is_function]
        annotations += [(1, member.annotation) for member in members if member.is_attribute]
        annotations += [(2, p.annotation) for member in members if member.is_function for p in member.parameters]
        for rank, annotation in annotations:
            for used in named_paths(annotation) - {path}:
                if used in users and not has_example(package[used.partition(".")[2]]):
                    users[used].add((rank, obj.name, path))
    return {path: list(dict.fromkeys(item[1:] for item in sorted(found))) for path, found in users.items()}


def named_paths(annotation: Any) -> set[str]:
    """Return the paths of the names in an annotation."""
    if not isinstance(annotation, griffe.Expr):
        return set()
    return {part.canonical_path for part in annotation.iterate(flat=True) if isinstance(part, griffe.ExprName)}


def has_example(obj: Any) -> bool:
    """Return whether the docstring has an example."""
    return bool(obj.docstring) and ">>>" in obj.docstring.value


def describe_object(obj: Any, name: str, level: int, note: str = "") -> Iterator[str]:
    """Yield the entry of a function or class with a note, and of the public methods of a class."""
    yield from ["", f"{'#' * level} {name.rpartition('.')[2]}", ""]
    if obj.is_attribute:
        yield from ["```python", f"{name} = {obj.value}"[:400], "```"]
    else:
        yield from ["```python", format_signature(obj, name), "```"]
    yield from ["", *describe_docstring(obj), note]
    if obj.is_class:
        for member_name, member in obj.members.items():
            if member.is_function and member.docstring and not member_name.startswith("_"):
                yield from describe_object(member, f"{name}.{member_name}", level + 1)


def format_signature(obj: Any, name: str) -> str:
    """Return the signature, on several lines if it is long."""
    parts, is_keyword_only = [], False
    for parameter in obj.parameters:
        if parameter.name in ("self", "cls"):
            continue
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not is_keyword_only:
            parts.append("*")
        is_keyword_only |= kind in (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        annotation = f": {parameter.annotation}" if parameter.annotation else ""
        has_default = parameter.default is not None and not stars
        equals = " = " if annotation else "="
        parts.append(f"{stars}{parameter.name}{annotation}{equals + str(parameter.default) if has_default else ''}")
    returns = f" -> {obj.returns}" if obj.is_function and obj.returns else ""
    line = f"{name}({', '.join(parts)}){returns}"
    return line if len(line) <= 90 else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){returns}"


def describe_docstring(obj: Any) -> Iterator[str]:
    """Yield the sections of a docstring as Markdown."""
    if not obj.docstring:
        return
    for section in obj.docstring.parse("google", warnings=False):
        if section.kind.value == "text":
            yield from [escape(dedent_examples(section.value)), ""]
        elif section.kind.value == "admonition" and section.value.kind == "example":
            yield from ["Example:", "", fence(section.value.contents), ""]
        elif section.kind.value in ("parameters", "other parameters", "attributes"):
            title = "attribute" if section.kind.value == "attributes" else "parameter"
            yield from [f"| {title} | meaning |", "|---|---|"]
            yield from (f"| `{item.name}` | {cell(item.description)} |" for item in section.value)
            yield ""
        elif section.kind.value in ("returns", "yields", "raises"):
            for item in section.value:
                what = f"`{item.annotation}`: " if section.kind.value == "raises" else ""
                yield from [f"{section.kind.value.capitalize()}: {what}{escape(item.description)}", ""]


def dedent_examples(text: str) -> str:
    """Fence the ``>>>`` examples of a text."""
    blocks = text.split("\n\n")
    return "\n\n".join(fence(block) if block.lstrip().startswith(">>>") else block for block in blocks)


def fence(example: str) -> str:
    """Return an example as a code block, without directives for the test that runs it."""
    return f"```pycon\n{_DIRECTIVE.sub('', example).strip()}\n```"


def summary(obj: Any) -> str:
    """Return the first sentence of a docstring."""
    text = obj.docstring.value.split("\n\n")[0] if obj.docstring else ""
    return re.split(r"(?<=\.)\s", text.replace("\n", " "))[0]


def escape(text: str) -> str:
    """Escape what Markdown would read as HTML, outside code."""
    parts = _CODE.split(text)
    return "".join(part if k % 2 else part.replace("<", "&lt;") for k, part in enumerate(parts))


def cell(text: str) -> str:
    """Return a text for the cell of a table."""
    return escape(" ".join(text.split())).replace("|", "\\|")


# The command line


def describe_commands() -> Iterator[str]:
    """Yield the lines of the page about the command line."""
    yield from [
        "# Command line", "",
        "This page is generated from the options of the commands; `elmo COMMAND --help` shows the same text. "
        "[Use the command line](../shell.md) explains inputs, outputs and exit codes.", "",
    ]  # fmt: skip
    root: Any = typer.main.get_command(build_app([]))
    names = root.list_commands(typer.Context(root))
    yield from describe_command(root, "elmo")
    for name in names:
        group: Any = typer.main.get_command(build_app([name]))
        command = group.get_command(typer.Context(group), name)
        if hasattr(command, "commands"):
            for child, subcommand in command.commands.items():
                yield from describe_command(subcommand, f"elmo {name} {child}")
        else:
            yield from describe_command(command, f"elmo {name}")


def describe_command(command: Any, path: str) -> Iterator[str]:
    """Yield the section of one command: usage, arguments, options and examples."""
    context = typer.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    yield from ["", f"## {path}", "", escape(re.sub(r"\s*\n\s*", " ", command.help or "")), ""]
    yield from ["```text", f"{path} {usage}", "```"]
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            default = "Arguments" if parameter.param_type_name == "argument" else "Options"
            title = getattr(parameter, "rich_help_panel", None) or default
            panels.setdefault(title, []).append(record)
    for title, rows in panels.items():
        if rows:
            yield from ["", f"| {title.lower()} | meaning |", "|---|---|"]
            yield from (f"| `{flags}`".replace("|", "\\|")[1:] + f" | {cell(text)} |" for flags, text in rows)
    _, _, examples = (command.epilog or "").partition("Examples:\n")
    if examples.strip():
        lines = [line.strip() for line in examples.splitlines() if line.strip()]
        yield from ["", "```bash", *lines, "```"]

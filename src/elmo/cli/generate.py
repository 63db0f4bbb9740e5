"""Generate the options of a command from the source of a library function or dataclass.

The library declares each option once: type and default in the signature, help in the ``Args:`` section of the
docstring. ``options_from`` reads them from the source file with ``ast``, because importing the module would
import torch, and ``elmo --help`` must start fast.
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, update_wrapper
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import typer

_PACKAGE = Path(__file__).resolve().parents[1]
_REQUIRED = inspect.Parameter.empty
Command = TypeVar("Command", bound=Callable[..., Any])


def options_from(
    source: str,
    *,
    into: str | None = None,
    skip: Collection[str] = (),
    panels: Mapping[str, Sequence[str]] | None = None,
    flags: Mapping[str, str | Sequence[str]] | None = None,
    metavars: Mapping[str, str] | None = None,
    minimums: Mapping[str, float] | None = None,
) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a library function or dataclass to a command.

    The command receives the values as ``**options``, under their names in the library. Parameters that the
    command declares itself are not added. If decorators are stacked, the options of the upper one come first.

    Args:
        source: ``"module:name"``, for example ``"elmo.train.run:train_bilm"``. The keyword-only parameters of
            a function become options, or all fields of a dataclass.
        into: Pass the values to the command as one dict under this name, with only the options that are set on
            the command line. Use it for a dataclass that is an argument of the library function.
        skip: Names that do not become options.
        panels: Titles of help panels, and the names of their options in order.
        flags: Names on the command line that differ from the default ``--parameter-name``.
        metavars: Placeholders for values in the help.
        minimums: Smallest allowed values of numeric options.
    """
    panel_of = {name: panel for panel, names in (panels or {}).items() for name in names}
    flags, metavars, minimums = flags or {}, metavars or {}, minimums or {}

    def build_parameter(option: Option) -> inspect.Parameter:
        names = flags.get(option.name, option.flag)
        info = typer.Option(
            *((names,) if isinstance(names, str) else names),
            help=option.help,
            show_default=option.show_default,
            rich_help_panel=panel_of.get(option.name),
            metavar=metavars.get(option.name, option.metavar),
            min=minimums.get(option.name),
        )
        return inspect.Parameter(
            f"{into}_{option.name}" if into else option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if option.is_list and not option.is_required else option.default,
            annotation=Annotated[option.type, info],
        )

    def generate(own: Collection[str]) -> _Generated:
        options = {option.name: option for option in read_options(source, skip={*skip, *own})}
        used = {*skip, *panel_of, *flags, *metavars, *minimums}
        if unknown := sorted(used - _list_names(source)):
            raise TypeError(f"{source} has no parameter {', '.join(unknown)}")
        order = dict.fromkeys([*(name for name in panel_of if name in options), *options])
        return {name: (options[name], build_parameter(options[name])) for name in order}

    def decorate(command: Command) -> Command:
        return cast("Command", _GeneratedCommand(command, into, generate))

    return decorate


class _GeneratedCommand:
    """A command with generated options.

    The source of the library is read when typer asks for the signature, which it does only for the command that runs.
    """

    def __init__(
        self, command: Callable[..., Any], into: str | None, generate: Callable[[Collection[str]], _Generated]
    ) -> None:
        update_wrapper(self, command, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())
        self._command, self._into, self._generate = command, into, generate

    @cached_property
    def _own(self) -> list[inspect.Parameter]:
        """Parameters that the command declares itself, or that a decorator below this one has generated."""
        parameters = inspect.signature(self._command, eval_str=True).parameters.values()
        return [p for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != self._into]

    @cached_property
    def _generated(self) -> _Generated:
        return self._generate(() if self._into else [parameter.name for parameter in self._own])

    @property
    def generated_names(self) -> set[str]:
        """Names of all generated parameters, including those of the decorators below this one."""
        below: set[str] = getattr(self._command, "generated_names", set())
        return below | {parameter.name for _, parameter in self._generated.values()}

    @property
    def __signature__(self) -> inspect.Signature:
        below: set[str] = getattr(self._command, "generated_names", set())
        first = [parameter for parameter in self._own if parameter.name not in below]
        last = [parameter for parameter in self._own if parameter.name in below]
        return inspect.Signature([*first, *(parameter for _, parameter in self._generated.values()), *last])

    @property
    def __annotations__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {name: parameter.annotation for name, parameter in self.__signature__.parameters.items()}

    def __call__(self, *arguments: Any, **values: Any) -> Any:
        """Run the command with the values of its options under the names of the library."""
        options: dict[str, Any] = {}
        for name, (option, parameter) in self._generated.items():
            value = values.pop(parameter.name)
            options[name] = option.default if option.is_list and not value else value
        if self._into:
            context = next(value for value in values.values() if hasattr(value, "get_parameter_source"))
            is_given = {name: is_set(context, parameter.name) for name, (_, parameter) in self._generated.items()}
            options = {self._into: {name: value for name, value in options.items() if is_given[name]}}
        return self._command(*arguments, **values, **options)


def is_set(context: typer.Context, *names: str) -> bool:
    """Return whether the command line or the environment sets at least one of these parameters."""
    sources = [context.get_parameter_source(name) for name in names]
    return any(source is not None and not source.name.startswith("DEFAULT") for source in sources)


@dataclass(frozen=True)
class Option:
    """One option of a library function or dataclass.

    Attributes:
        name: Name in the library.
        type: Type for typer.
        default: Default in the library, or ``inspect.Parameter.empty``.
        help: Description in the docstring, without its sentence ``Default: …``.
        show_default: Text of the sentence ``Default: …``, or whether the help shows the value of the default.
    """

    name: str
    type: Any
    default: Any
    help: str
    show_default: str | bool

    @property
    def flag(self) -> str:
        """The default name on the command line, such as ``--batch-size``."""
        if self.type not in (bool, bool | None):
            return f"--{self.name.replace('_', '-')}"
        name = re.sub("^(is|has)_", "", self.name).replace("_", "-")
        return f"--{name}" if self.default is False else f"--{name}/--no-{name}"

    @property
    def metavar(self) -> str | None:
        """The default placeholder for the value in the help, such as ``N``; None for a ``Literal``."""
        placeholders = ((int, "N"), (float, "X"), (Path, "PATH"), (str, "TEXT"), (list[str], "TEXT"))
        return next((text for kind, text in placeholders if self.type in (kind, kind | None)), None)

    @property
    def is_list(self) -> bool:
        """Whether the option may be repeated."""
        return self.type in (list[str], list[str] | None)

    @property
    def is_required(self) -> bool:
        """Whether the option has no default."""
        return self.default is _REQUIRED


_Generated = dict[str, tuple[Option, inspect.Parameter]]  # by name in the library


def read_options(source: str, *, skip: Collection[str] = ()) -> list[Option]:
    """Read the options of ``"module:name"`` from its source file."""
    options = []
    for module, help_lines, (parameter, annotation, default) in _declarations(source):
        if parameter in skip:
            continue
        if annotation is None or parameter not in help_lines:
            raise TypeError(f"{source}: {parameter} must have a type and a line in the docstring")
        text, _, shown = help_lines[parameter].partition("Default: ")
        value = _REQUIRED if default is None else _constant(module, default, f"{source}: {parameter}")
        options.append(
            Option(
                parameter,
                type=_type(module, annotation, f"{source}: {parameter}"),
                default=value,
                help=text.strip(),
                show_default=shown.rstrip(".") or not (value in ((), "") or value is False),
            )
        )
    return options


def read_descriptions(docstring: str) -> dict[str, str]:
    """Read the descriptions of parameters from the Google-style section ``Args:`` or ``Attributes:``."""
    descriptions: dict[str, str] = {}
    section = re.search(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n|\n)*)", docstring + "\n", re.M)
    lines = inspect.cleandoc(section[1]).splitlines() if section else []
    name = ""
    for line in lines:
        if match := re.match(r"(\w+)(?: \([^)]*\))?:\s*(.*)", line):
            name, descriptions[match[1]] = match[1], match[2]
        elif line.strip():
            descriptions[name] += f" {line.strip()}"
    return {name: text.replace("``", "") for name, text in descriptions.items()}


Declaration = tuple[str, ast.expr | None, ast.expr | None]  # name, annotation, default


def _declarations(source: str) -> Iterator[tuple[str, Mapping[str, str], Declaration]]:
    """Yield the module, the help lines and the declaration of each option.

    A function with ``**options: Unpack[Name]`` also has the keys of the ``TypedDict`` with this name.
    """
    module, node = _find(*source.split(":"))
    nodes = [(module, node)]
    if isinstance(node, ast.FunctionDef) and (unpacked := re.search(r": Unpack\[(\w+)\]", ast.unparse(node.args))):
        nodes.append(_find(module, unpacked[1]))
    for module, node in nodes:
        declarations = list(_parameters(node, source))
        help_lines = read_descriptions(ast.get_docstring(node) or "")  # pyright: ignore[reportArgumentType]
        yield from ((module, help_lines, declaration) for declaration in declarations)


def _parameters(node: ast.AST, source: str) -> Iterator[Declaration]:
    if isinstance(node, ast.FunctionDef):
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            yield argument.arg, argument.annotation, default
    elif isinstance(node, ast.ClassDef):
        is_partial = any(keyword.arg == "total" for keyword in node.keywords)  # TypedDict(total=False)
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                default = ast.Constant(None) if is_partial else field.value
                yield field.target.id, field.annotation, default
    else:
        raise TypeError(f"{source} is not a function or a dataclass")


def _list_names(source: str) -> set[str]:
    return {name for _, _, (name, _, _) in _declarations(source)}


@cache
def _parse(module: str) -> tuple[bool, dict[str, ast.AST]]:
    """Return whether a module is a package, and its definitions and imports by name."""
    path = _PACKAGE.parent.joinpath(*module.split("."))
    files = (path / "__init__.pyi", path / "__init__.py", path.with_suffix(".py"))
    file = next(file for file in files if file.exists())
    names: dict[str, ast.AST] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            imports = [inner for inner in node.body if isinstance(inner, ast.ImportFrom)]
            names |= {alias.asname or alias.name: inner for inner in imports for alias in inner.names}
    return file.stem == "__init__", names


def _find(module: str, name: str) -> tuple[str, ast.AST]:
    """Return the node that defines a name and its module, following imports inside elmo."""
    is_package, names = _parse(module)
    node = names.get(name)
    if isinstance(node, ast.ImportFrom):
        origin = next(alias.name for alias in node.names if name in (alias.asname, alias.name))
        parents = module.split(".")
        base = parents[: len(parents) - node.level + is_package] if node.level else []
        target = ".".join([*base, *([node.module] if node.module else [])])
        if target.split(".")[0] == "elmo":
            return _find(target, origin)
    if node is None:
        raise TypeError(f"{module} has no {name}")
    return module, node


_TYPES: dict[str, Any] = {"str": str, "int": int, "float": float, "bool": bool, "Path": Path}
_LISTS = ("list[str]", "Sequence[str]", "Sequence[str | Path]", "tuple[str, ...]")


def _type(module: str, node: ast.AST, where: str) -> Any:
    """Return the type for typer that corresponds to an annotation."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        if ast.unparse(node.right) == "None":
            return _type(module, node.left, where) | None
        if ast.unparse(node) == "str | Path":  # a path or a name: the library decides
            return str
    text = ast.unparse(node)
    if text in _TYPES:
        return _TYPES[text]
    if text in _LISTS:
        return list[str]
    if isinstance(node, ast.Subscript) and text.startswith("Literal["):
        return Literal[ast.literal_eval(node.slice)]
    if isinstance(node, ast.Name):
        alias_module, alias = _find(module, node.id)
        if not isinstance(alias, ast.ImportFrom | ast.ClassDef | ast.FunctionDef):
            return _type(alias_module, alias, where)
    raise TypeError(f"{where}: cannot generate an option of the type {text}; skip it or declare it in the command")


_OPERATORS = {ast.LShift: operator.lshift, ast.Mult: operator.mul, ast.Pow: operator.pow}


def _constant(module: str, node: ast.AST, where: str) -> Any:
    """Return the value of a default: a literal, a module-level constant, or a product such as ``1 << 20``."""
    if isinstance(node, ast.Name):
        return _constant(*_find(module, node.id), where)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        sides = (_constant(module, side, where) for side in (node.left, node.right))
        return _OPERATORS[type(node.op)](*sides)
    try:
        return ast.literal_eval(node)  # pyright: ignore[reportArgumentType]
    except ValueError:
        raise TypeError(
            f"{where}: the default {ast.unparse(node)} is not a constant; declare the option in the command"
        ) from None

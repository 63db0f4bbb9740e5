"""The docstrings of all public names: they describe every parameter, and their examples run."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elmo import Elmo, MissingExtraError, tasks, train_bilm

SOURCE = Path(__file__).parents[2] / "src" / "elmo"
PACKAGES = sorted(
    (".".join(("elmo", *stub.parent.relative_to(SOURCE).parts)) for stub in SOURCE.rglob("__init__.pyi")),
    key=lambda name: (name.count("."), name),
)


def public_names() -> list[str]:
    """Return every public name, with the first package that exports it; nothing is imported yet."""
    packages: dict[str, list[str]] = {}
    for package in PACKAGES:
        for name in importlib.import_module(package).__all__:
            packages.setdefault(name, []).append(package)
    return [
        f"{package}.{name}"
        for name, found in packages.items()
        for package in (found[:1] if found[0] == "elmo" else found)  # elmo exports names of other packages again
        if name not in ("PRESETS", "__version__")
    ]


def load_public(name: str) -> Any:
    """Import a public name, or skip the test if it needs a library that is not installed."""
    package, _, item = name.rpartition(".")
    try:
        return getattr(importlib.import_module(package), item)
    except MissingExtraError as error:
        pytest.skip(str(error))


NAMES = [  # the integrations import large libraries
    pytest.param(name, marks=pytest.mark.slow if "integrations" in name else ()) for name in public_names()
]

WORDS = ("old", "new", "big", "small", "long", "short", "high", "low")
SEMCOR = """{"doc": "a", "s": "1", "toks": [{"w": "The"}, {"w": "bank", "lemma": "bank", "sk": ["bank%1:17:01::"]}]}"""
CORPUS = """\
They walked along the bank of the river .
We sat on the bank and watched the boats .
The village lies on the north bank of the stream .
The bank lent the company two million dollars .
Her bank gave her a loan to buy the house .
He put his money in the bank .
The old man feeds the birds every morning .
She closed the window because it was cold .
The train to Berlin leaves in ten minutes .
The children played in the snow until dark .
""".replace(" .", ".")


needs_griffe = pytest.mark.skipif(importlib.util.find_spec("griffe") is None, reason="needs the extra docs")


@pytest.fixture(scope="module")
def reference() -> Any:
    """The script that writes the reference."""
    spec = importlib.util.spec_from_file_location("reference", SOURCE.parents[1] / "docs/site/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def package(reference: Any) -> Any:
    """The source of the package, which is read and not imported."""
    return reference.load_package(SOURCE.parent)


@pytest.fixture(scope="module")
def model() -> Elmo:
    return Elmo.from_pretrained()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which all examples run, with the files that they name."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ELMO_CACHE", str(folder / "cache"))
        patch.setenv("ELMO_DOWNLOADS", str(folder / "downloads/models"))
        patch.setenv("MPLBACKEND", "agg")
        Path("corpus.txt").write_text(CORPUS)
        Path("long.txt").write_text(
            "\n".join(f"The {a} bank of the {b} was far from here." for a in WORDS for b in WORDS)
        )
        Path("semcor.jsonl").write_text(SEMCOR)
        for name in ("train.conll", "dev.conll"):
            Path(name).write_text("She O\nflew O\nto O\nLondon B-LOC\n. O\n\nParis B-LOC\nis O\nhere O\n\n" * 4)
        Path("pairs.tsv").write_text(
            "The [[bank]] lent her money.\tHer [[bank]] gave her a loan.\tT\n"
            "The [[bank]] lent her money.\tWe sat on the [[bank]] of the river.\tF\n"
        )
        Path("agreement.tsv").write_text("sentence_good\tsentence_bad\nThe keys are here.\tThe keys is here.\n")
        Path("reviews.csv").write_text('id,text\n1,"A good film, really."\n2,Not for me .\n')
        tasks.train("tagging", ["train.conll"], dev=["dev.conll"], out="tagger.safetensors", epochs=1)
        train_bilm("corpus.txt", "run", preset="tiny", layers=1, cells=32, width=16, epochs=1)
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("name", public_names())
def test_an_example_runs(name: str, model: Elmo, folder: Path) -> None:
    text = inspect.getdoc(load_public(name)) or ""
    if ">>>" not in text:
        return  # a result of a function that has one
    package, _, public = name.rpartition(".")
    names: dict[str, Any] = {}
    for source in ("elmo", package):
        module = importlib.import_module(source)
        names |= {item: getattr(module, item) for item in module.__all__ if re.search(rf"\b{item}\b", text)}
    names |= {"np": importlib.import_module("numpy"), "torch": importlib.import_module("torch"), "Path": Path}
    names["elmo"] = model
    example = doctest.DocTestParser().get_doctest(text, names, public, name, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    runner.run(example, out=report.append)
    if any("MissingExtraError" in line for line in report):
        pytest.skip("needs a library that is not installed")
    assert not report, "".join(report)


def find_undescribed(public: Any) -> list[str]:
    """Return the parameters that are neither in a section of the docstring nor in its text, as ``name``."""
    texts = [inspect.getdoc(public) or ""]
    if inspect.isclass(public):  # a constructor may be inherited
        parents = [parent for parent in public.__mro__ if parent.__module__.startswith("elmo.")]
        texts += [parent.__doc__ or "" for parent in parents]
        texts += [parent.__init__.__doc__ or "" for parent in parents if "__init__" in vars(parent)]
    text = "\n".join(map(inspect.cleandoc, texts))
    described = {*re.findall(r"^    \*{0,2}(\w+): ", text, re.MULTILINE), *re.findall(r"``(\w+)``", text)}
    return [name for name in list_parameters(public) if name not in described]


def list_parameters(public: Any) -> list[str]:
    """Return the parameters of a function or constructor, or the keys of a ``TypedDict``."""
    if inspect.isclass(public) and issubclass(public, dict):
        return list(public.__annotations__)
    if inspect.isclass(public) and issubclass(public, Exception) and "__init__" not in vars(public):
        return []  # only a message
    skipped = ("self", "args", "kwargs")
    return [name for name in inspect.signature(public).parameters if name not in skipped and not name.startswith("_")]


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_describes_every_parameter(name: str) -> None:
    public = load_public(name)
    summary = (inspect.getdoc(public) or "").split("\n\n")[0]
    assert summary[:1].isupper()
    assert summary.endswith((".", ":")) or ">>>" in summary
    assert find_undescribed(public) == []


def test_an_undescribed_parameter_is_found() -> None:
    def measure(text: str, unit: str, scale: float) -> None:
        """Measure ``text``.

        Args:
            unit: The unit.
        """

    assert find_undescribed(measure) == ["scale"]


@needs_griffe
@pytest.mark.slow
def test_every_function_has_an_example_and_every_class_leads_to_one(reference: Any, package: Any) -> None:
    pages = {name: reference.public_objects(package, name) for name in reference.public_packages(SOURCE.parent)}
    homes = {path: name for name, objects in pages.items() for path in objects.values()}
    found = {path for path in homes if reference.has_example(package[path.partition(".")[2]])}
    assert [path for path in homes.keys() - found if package[path.partition(".")[2]].is_function] == []
    users = reference.find_users(package, homes)
    size = 0
    while size < len(found):
        size = len(found)
        found |= {path for path in homes if found.intersection(user for _, user in users[path])}
    assert homes.keys() - found == {"elmo.train.options.PRESETS"}  # a table, which is explained in docs/training.md


@needs_griffe
@pytest.mark.slow
def test_the_reference_shows_examples_without_directives(reference: Any, package: Any) -> None:
    text = "\n".join(reference.describe_docstring(package["formats.pretrained.fetch"]))
    assert "```pycon\n>>> fetch(" in text
    assert "doctest" not in text

"""Export the explorer as a static site, in which the models run in the browser: a folder or a single HTML file.

The folder contains:

=======================  ===============================================================================
file                     contents
=======================  ===============================================================================
``index.html``           the page, with ``style.css`` and ``icon.svg``
``page.js``              all modules of the page in one script (see ``bundle.py``)
``config.json``          the models, indexes and periods of the site, for ``local.js``
``runtime/``             the worker with onnxruntime-web, and its WebAssembly binary, compressed
``models/NAME/``         ``model.onnx`` and ``softmax.onnx`` (see ``elmo.formats.onnx``), and ``words.json.gz``
``text-*.bin.gz``        data of the tokenizers (see ``export_text.py``)
``indexes/NAME/``        usages of frequent words of an index, arranged and clustered, with vectors in 8 bits
``change/``              the change of words between periods
``licenses.txt``         the licenses of the libraries in the page
=======================  ===============================================================================

The page works from any web server and from disk. A page that is opened from disk can load scripts only, so the data
files are scripts with the suffix ``.js``; ``local.js`` describes them. A single HTML file contains all files as
elements. The page loads nothing else, and its Content-Security-Policy allows no requests.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import io
import json
import logging
import os
import re
import secrets
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo import __version__
from elmo.errors import ChecksumError, ConfigError, FormatError, OutputError, importing_extra
from elmo.formats import onnx
from elmo.lexicon.usages import entry_key, unit_rows
from elmo.serve.bundle import bundle_modules, convert_module, encode_text
from elmo.serve.export_text import build_ids_config, check_browser_tokenizer, write_text_data
from elmo.serve.options import ServeOptions
from elmo.storage.atomic import atomic_file, atomic_folder, cannot_write, check_output_file, check_output_folder
from elmo.storage.files import format_error, format_path, read_json

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.serve.explore import Periods
    from elmo.serve.service import LoadedIndex, LoadedModel, Service
    from elmo.text.ids import Vocabulary

logger = logging.getLogger(__name__)

FORMAT, VERSION = "elmo-site", 1
CONFIG = "config.json"
STATIC = Path(__file__).parent / "static"
MAX_TOKENS = 10_000  # of a request in the browser
SKIPPED_WORDS = 100  # most frequent words of a large index, which are function words
MIN_USAGES = 5  # of an exported word
PAGE_SUFFIXES = (".html", ".htm")  # of a single file
MAX_PAGE_BYTES = 400_000_000  # of the data in a single file; a browser reads it as one string
# An exported page may run its own scripts and load nothing; WebAssembly needs a separate permission.
CONTENT_SECURITY = (
    "default-src 'none'; script-src {scripts} 'wasm-unsafe-eval'; style-src {styles}; img-src {images} data: blob:; "
    "worker-src blob:; base-uri 'none'; form-action 'none'"
)
_GENERATOR = f'<meta name="generator" content="{FORMAT}">'
_DATA_SUFFIXES = (".json", ".gz", ".onnx", ".bin", ".worker")

# --- onnxruntime-web -----------------------------------------------------------------------------------

RUNTIME_VARIABLE = "ELMO_ONNXRUNTIME_WEB"
RUNTIME_VERSION = "1.30.0"
RUNTIME_URL = f"https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-{RUNTIME_VERSION}.tgz"
RUNTIME_SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="  # by npm
_PACKAGE = "onnxruntime-web"
_MODULE, _BINARY = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
_MAX_DOWNLOAD = 200 << 20
_TIMEOUT = 60  # seconds
_LICENSE = """MIT License

Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


@dataclass(frozen=True)
class WebRuntime:
    """The two files of onnxruntime-web that a site needs."""

    version: str
    module: bytes
    binary: bytes


def find_runtime(folder: str | Path | None = None) -> WebRuntime:
    """Find the npm package onnxruntime-web, or download it.

    Places, in this order: ``folder``, the folder in the environment variable ELMO_ONNXRUNTIME_WEB, node_modules in the
    current folder and its parents, and the npm registry, from which one version with a known checksum is downloaded.

    Args:
        folder: Folder of the package, or a folder with node_modules in it.
    """
    chosen = folder or os.environ.get(RUNTIME_VARIABLE)
    if chosen:
        package = _find_package(Path(chosen))
        if package is None:
            raise ConfigError(
                f"{format_path(chosen)}: expected the npm package {_PACKAGE} 1.x; found none; "
                f"run: npm install {_PACKAGE}@{RUNTIME_VERSION}"
            )
        return _read_package(package)
    here = Path.cwd()
    for parent in (here, *here.parents):
        package = parent / "node_modules" / _PACKAGE
        if (package / "dist" / _MODULE).is_file():
            return _read_package(package)
    return _download_runtime()


def _find_package(folder: Path) -> Path | None:
    candidates = (folder, folder.parent, folder / "node_modules" / _PACKAGE, folder / _PACKAGE)
    return next((path for path in candidates if (path / "dist" / _MODULE).is_file()), None)


def _read_package(package: Path) -> WebRuntime:
    try:
        version = str(read_json(package / "package.json").get("version", ""))
        module, binary = ((package / "dist" / name).read_bytes() for name in (_MODULE, _BINARY))
    except OSError as error:
        raise ConfigError(f"{format_path(package)}: cannot read {_PACKAGE}: {format_error(error)}") from error
    if not version.startswith("1."):
        raise ConfigError(f"{format_path(package)}: the version of {_PACKAGE} must be 1.x; found {version[:40]!r}")
    return WebRuntime(version, module, binary)


def _download_runtime() -> WebRuntime:
    """Download the package from the npm registry, and check its SHA-512."""
    advice = f"run: npm install {_PACKAGE}@{RUNTIME_VERSION}, and pass its folder with --onnxruntime"
    logger.info("downloading %s %s from the npm registry", _PACKAGE, RUNTIME_VERSION)
    try:
        with urllib.request.urlopen(RUNTIME_URL, timeout=_TIMEOUT) as reply:
            content = reply.read(_MAX_DOWNLOAD)
    except (OSError, urllib.error.URLError) as error:
        raise ConfigError(f"cannot download {RUNTIME_URL}: {format_error(error)}; {advice}") from error
    if base64.b64encode(hashlib.sha512(content).digest()).decode() != RUNTIME_SHA512:
        raise ChecksumError(f"{RUNTIME_URL}: the SHA-512 of the download differs from the recorded one; {advice}")
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for name in (_MODULE, _BINARY):
            member = archive.extractfile(f"package/dist/{name}")
            if member is None:
                raise FormatError(f"{RUNTIME_URL}: the package has no file dist/{name}; {advice}")
            files[name] = member.read()
    return WebRuntime(RUNTIME_VERSION, files[_MODULE], files[_BINARY])


# --- The site ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExportOptions:
    """Contents of an exported site.

    Attributes:
        models: Models, as in ``Elmo.from_pretrained``; the first is the default model of the page.
        indexes: Folders written by ``elmo index``.
        corpora: Names of periods and their text files, in order of time, whose words are compared.
        n_words: Number of words to export: the most frequent ones of each index, and those that changed most between
            the periods.
        n_usages: Number of usages of each of these words; a random sample if there are more.
        onnxruntime: Folder of the npm package onnxruntime-web; see ``find_runtime``.

    Example:
        >>> options = ExportOptions(models=("en",), n_words=20)
    """

    models: tuple[str, ...] = ("en",)
    indexes: tuple[Path, ...] = ()
    corpora: tuple[tuple[str, Path], ...] = ()
    n_words: int = 100
    n_usages: int = 200
    onnxruntime: Path | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("models must have at least one model; found none")
        if self.n_words < 1 or self.n_usages < MIN_USAGES:
            raise ConfigError(
                f"n_words must be at least 1 and n_usages at least {MIN_USAGES}; "
                f"found {self.n_words} and {self.n_usages}"
            )


@dataclass(frozen=True)
class ExportedSite:
    """What was exported: the folder or the HTML file, and the size of its files in bytes by path.

    Attributes:
        path: The folder or the HTML file.
        sizes: Size of each file in bytes, by path.
    """

    path: Path
    sizes: dict[str, int]

    @property
    def n_bytes(self) -> int:
        """Size of all files."""
        return sum(self.sizes.values())


def export_site(path: str | Path, options: ExportOptions | None = None) -> ExportedSite:
    """Write the explorer as a static site, completely or not at all.

    Args:
        path: The folder to write: new or empty, or an earlier export, which is replaced. A name that ends in ``.html``
            writes a single file instead.
        options: Contents of the site.

    Example:
        >>> export_site("site", ExportOptions(onnxruntime=Path("onnxruntime-web")))  # doctest: +SKIP
    """
    options = options or ExportOptions()
    path = Path(path).absolute()
    is_page = path.suffix.lower() in PAGE_SUFFIXES
    (_check_page if is_page else _check_folder)(path)
    _check_extras()
    from elmo.serve.service import Service

    runtime = find_runtime(options.onnxruntime)
    service = Service.load(
        ServeOptions(models=options.models, indexes=options.indexes, corpora=options.corpora, max_tokens=MAX_TOKENS)
    )
    _check_models(list(service.models.values()))
    if is_page:
        with _temporary_folder(path) as new, atomic_file(path) as page:
            _write_files(new, service, runtime, options, target=path)
            _write_single_page(page, new)
        return ExportedSite(path, {path.name: path.stat().st_size})
    with _new_folder(path) as new:
        _write_files(new, service, runtime, options, target=path)
        _write_folder(new)
        sizes = {
            file.relative_to(new).as_posix(): file.stat().st_size for file in sorted(new.rglob("*")) if file.is_file()
        }
    return ExportedSite(path, sizes)


def _write_files(folder: Path, service: Service, runtime: WebRuntime, options: ExportOptions, *, target: Path) -> None:
    """Write the data files of a site as they are, before they are written as text; ``target`` is for messages."""
    try:
        texts = _write_text(folder, list(service.models.values()))
        models = [_write_model(folder, model, texts[model.name]) for model in service.models.values()]
    except OutputError as error:  # which names a file in the temporary folder
        raise cannot_write(target, error.__cause__ or error) from error
    indexes = [_write_index(folder, index, options) for index in service.indexes.values()]
    periods = None if service.periods is None else _write_periods(folder, service.periods.wait(), options)
    catalog = {
        **service.describe(),
        "data": [settings["entry"] for settings in models],
        "indexes": [settings["entry"] for settings in indexes],
        "corpora": None if service.periods is None else {"periods": list(service.periods.names)},
    }
    config = {
        "format": FORMAT, "format_version": VERSION, "library_version": __version__, "catalog": catalog,
        "runtime": _write_runtime(folder, runtime), "models": models, "indexes": indexes, "periods": periods,
    }  # fmt: skip
    (folder / CONFIG).write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _check_extras() -> None:
    with importing_extra("the export of the explorer", extra="serve,onnx"):
        import onnx
        import orjson

        del onnx, orjson


def _check_models(models: Sequence[LoadedModel]) -> None:
    for model in models:
        try:
            check_browser_tokenizer(_tokenizer_name(model.elmo))
        except ConfigError as error:
            raise ConfigError(f"model {model.name}: {error}") from error


def _check_folder(folder: Path) -> None:
    """Check that a folder is new or empty, or that it is an earlier export."""
    if _is_export(folder):
        return
    try:
        check_output_folder(folder)
    except OutputError as error:
        raise OutputError(
            f"{format_path(folder)} exists and is not an exported site; choose a new folder, or remove it first"
        ) from error


def _check_page(path: Path) -> None:
    """Check that a file is new, or that it is an earlier export."""
    check_output_file(path)
    if path.is_symlink() or (path.exists() and not _is_exported_page(path)):
        raise OutputError(
            f"{format_path(path)} exists and is not an exported page; choose a new name, or remove it first"
        )


def _is_exported_page(path: Path) -> bool:
    with path.open("rb") as file:
        return _GENERATOR in file.read(4000).decode("utf-16", "replace")


def _is_export(folder: Path) -> bool:
    path = folder / CONFIG
    if folder.is_symlink() or not path.is_file():
        return False
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``folder`` at the end; an earlier export is then removed."""
    if not _is_export(folder):
        with atomic_folder(folder) as new:
            yield new
        return
    mark = secrets.token_hex(4)
    staged, old = (folder.with_name(f".{folder.name[:40]}.{mark}.{kind}") for kind in ("new", "old"))
    try:
        with atomic_folder(staged) as new:
            yield new
        folder.rename(old)
        try:
            staged.rename(folder)
        except OSError:
            old.rename(folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"cannot replace {format_path(folder)}: {format_error(error)}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)  # after a success it no longer exists


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to a file, which is removed at the end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}.", dir=path.parent))
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield folder
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- The page ------------------------------------------------------------------------------------------


def _write_folder(folder: Path) -> None:
    """Write the page, and turn the data files into scripts, which a page that is opened from disk can load."""
    for path in _data_files(folder):
        name, content = path.relative_to(folder).as_posix(), path.read_bytes()
        script = f"\ufeffelmoFile({json.dumps(name)}, {len(content)}, "
        text = encode_text(content)
        path.with_name(f"{path.name}.js").write_bytes(f'{script}"{text}");\n'.encode("utf-16-le"))
        if name != CONFIG:
            path.unlink()
    (folder / "page.js").write_text(bundle_modules("app.js", STATIC), encoding="utf-8", newline="\n")
    for name in ("style.css", "icon.svg"):
        (folder / name).write_bytes((STATIC / name).read_bytes())
    (folder / "licenses.txt").write_text(_licenses(), encoding="utf-8", newline="\n")
    policy = CONTENT_SECURITY.format(scripts="'self'", styles="'self'", images="'self'")
    page = _static_page(policy, head={"script": '<script src="page.js" defer></script>'})
    (folder / "index.html").write_text(page, encoding="utf-8", newline="\n")


def _write_single_page(page: Path, folder: Path) -> None:
    """Write one HTML file with everything in it, in UTF-16 with a byte order mark, which every browser respects."""
    files = _data_files(folder)
    n_bytes = sum(path.stat().st_size for path in files)
    if n_bytes > MAX_PAGE_BYTES:
        raise ConfigError(
            f"a single file can have {MAX_PAGE_BYTES / 1e6:.0f} MB; found {n_bytes / 1e6:.0f} MB; export a folder"
        )
    script, style = "\n" + bundle_modules("app.js", STATIC), "\n" + (STATIC / "style.css").read_text(encoding="utf-8")
    policy = CONTENT_SECURITY.format(scripts=_hash_source(script), styles=_hash_source(style), images="")
    icon = base64.b64encode((STATIC / "icon.svg").read_bytes()).decode()
    head = {"style": f"<style>{style}</style>", "icon": f"data:image/svg+xml;base64,{icon}"}
    begin, end = _static_page(policy, head=head).split("</body>")
    with page.open("wb") as output:

        def write(text: str) -> None:
            output.write(text.encode("utf-16-le"))

        write("\ufeff" + begin)
        for path in files:
            name, content = path.relative_to(folder).as_posix(), path.read_bytes()
            write(
                f'<script type="application/octet-stream" data-file="{html.escape(name)}" data-bytes="{len(content)}">'
            )
            write(encode_text(content) + "</script>\n")
        write(f'<script type="text/plain" data-file="licenses.txt">\n{_licenses()}</script>\n')
        write(f"<script>{script}</script>\n  </body>{end}")


def _data_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in _DATA_SUFFIXES]


def _hash_source(text: str) -> str:
    """Return the source expression of a Content-Security-Policy that allows one script or style."""
    if "</script" in text or "</style" in text or "<!--" in text:
        raise FormatError("a script or style in a page must not contain its own end tag or a comment")
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _static_page(policy: str, *, head: Mapping[str, str]) -> str:
    """Change the page of the server so that it runs the models itself.

    Args:
        policy: The Content-Security-Policy.
        head: What replaces parts of the head: ``script``, ``style``, and the address of the ``icon``. The scripts of
            modules are removed in any case.
    """
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    page = re.sub(r' *<link rel="modulepreload" [^\n]*\n', "", page)
    changes = {
        '<meta name="elmo-backend" content="server">': '<meta name="elmo-backend" content="browser">',
        '<meta charset="utf-8">': f'<meta charset="utf-8">\n    {_GENERATOR}\n    '
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n    '
        '<meta name="referrer" content="no-referrer">',
        '    <script type="module" src="app.js"></script>\n': f"    {head['script']}\n" if "script" in head else "",
    }
    if "style" in head:
        changes['<link rel="stylesheet" href="style.css">'] = head["style"]
    if "icon" in head:
        changes['href="icon.svg"'] = f'href="{head["icon"]}"'
    for old, new in changes.items():
        if page.count(old) != 1:
            raise FormatError(f"static/index.html must contain {old!r} once; found {page.count(old)}")
        page = page.replace(old, new)
    return page


def _licenses() -> str:
    """Return the licenses of all libraries in a site."""
    vendored = sorted((STATIC / "vendor").glob("LICENSE-*"))
    parts = [f"{path.name.removeprefix('LICENSE-')}\n\n{path.read_text(encoding='utf-8')}" for path in vendored]
    return "\n\n".join([*parts, f"onnxruntime-web, https://onnxruntime.ai\n\n{_LICENSE}"])


def _write_runtime(folder: Path, runtime: WebRuntime) -> dict[str, Any]:
    """Write the worker, which contains the module of onnxruntime-web, and the WebAssembly binary."""
    (folder / "runtime").mkdir()
    module = convert_module(runtime.module.decode(), "ort.mjs", on_import=_refuse_import, on_dynamic=_refuse_import)
    module = module.replace("import.meta.url", "self.location.href")  # from disk, only classic workers start
    if "import.meta" in module:
        raise FormatError(f"{_MODULE} must use import.meta for its address only")
    worker = f"globalThis.elmoRuntime = {{}};\n((exports) => {{\n{module}\n}})(globalThis.elmoRuntime);\n"
    (folder / "runtime" / "ort.worker").write_text(
        worker + bundle_modules("local-worker.js", STATIC), encoding="utf-8", newline="\n"
    )
    name = "runtime/ort.wasm.gz"
    (folder / name).write_bytes(gzip.compress(runtime.binary, 9, mtime=0))
    return {"binary": name, "version": runtime.version, "sha256": hashlib.sha256(runtime.binary).hexdigest()}


def _refuse_import(name: str) -> None:
    raise FormatError(f"{_MODULE} must not import other modules; found {name[:40]!r}")


def _write_json(path: Path, value: Any) -> None:
    """Write compressed JSON; always the same bytes for the same value."""
    from elmo.serve.replies import to_json

    path.write_bytes(gzip.compress(to_json(value), 9, mtime=0))


# --- Models --------------------------------------------------------------------------------------------


def _tokenizer_name(elmo: Elmo) -> str:
    name = str(getattr(elmo.tokenizer, "name", "custom"))
    return "en" if name == "default" else name


def _write_text(folder: Path, models: Sequence[LoadedModel]) -> dict[str, str | None]:
    """Write the data of the tokenizers; return the name of the file of each model."""
    names: dict[str, str | None] = {}
    for model in models:
        is_simplified = model.elmo.config.alphabet == "simplified"  # whose ids need the tables of Chinese characters
        tokenizer = "zh" if is_simplified else _tokenizer_name(model.elmo)
        file = f"text-{tokenizer}.bin.gz"
        if tokenizer == "whitespace":
            names[model.name] = None
            continue
        if not (folder / file).exists():
            write_text_data(folder, tokenizer)
        names[model.name] = file
    return names


def _write_model(folder: Path, model: LoadedModel, text: str | None) -> dict[str, Any]:
    """Write the files of a model; return its entry in ``config.json``."""
    elmo = model.elmo
    where = f"models/{model.name}"
    target = folder / where
    target.parent.mkdir(exist_ok=True)
    onnx.write(elmo.pretrained, target)
    description = json.loads((target / onnx.DESCRIPTION).read_bytes())
    for name in ("vocab.txt", "characters.json", onnx.DESCRIPTION):  # words.json.gz and config.json have their contents
        (target / name).unlink(missing_ok=True)
    has_softmax = elmo.softmax is not None and elmo.vocab is not None
    if elmo.vocab is not None:
        _write_json(target / "words.json.gz", _describe_words(elmo, elmo.vocab, has_lemmas=has_softmax))
    alphabet = elmo.indexer.alphabet
    return {
        "entry": {**model.describe(MAX_TOKENS), "created": 0, "precision": "float32"},
        "tokenizer": _tokenizer_name(elmo),
        "text": text,
        "ids": None if alphabet is None else build_ids_config(alphabet),
        "config": description["config"],
        "directions": description["directions"],
        "dtype": description["dtype"],
        "network": f"{where}/{onnx.NETWORK}",
        "softmax": f"{where}/{onnx.SOFTMAX}" if has_softmax else None,
        "words": None if elmo.vocab is None else f"{where}/words.json.gz",
    }


def _describe_words(elmo: Elmo, vocab: Vocabulary, *, has_lemmas: bool) -> dict[str, Any]:
    """Return the vocabulary with the lemma of each word, as ``local-lexicon.js`` reads it.

    ``forms`` has the lemmas of words that are not in the vocabulary while other forms of their lemma are.
    """
    numbers = {word: row for row, word in enumerate(vocab.words)}
    ids = {name: numbers.get(getattr(vocab, name)) for name in ("bos", "eos", "unknown")}
    values: dict[str, Any] = {"words": list(vocab.words), **ids}
    if not has_lemmas:
        return values
    from elmo.lexicon.substitutes import Substituter

    table = Substituter(elmo).table
    rows = np.empty(len(vocab.words), dtype=np.int64)
    for lemma in range(len(table.lemmas)):
        rows[table.forms(lemma)] = lemma
    key = entry_key(elmo)
    known = {key(word) for word in vocab.words}
    forms = {form: table.find(form) for form in _list_forms(elmo) if form not in known}
    return {
        **values, "lemmas": list(table.lemmas), "lemma_of_row": rows,
        "forms": {form: lemma for form, lemma in forms.items() if lemma is not None and table.lemmas[lemma] != form},
    }  # fmt: skip


def _list_forms(elmo: Elmo) -> list[str]:
    """Return the inflected forms in lower case that the lemmatizer of a model has in its dictionary."""
    from elmo.lexicon.substitutes import Lemmatizer, tokenizer_language

    lemmatizer = Lemmatizer(tokenizer_language(elmo))
    if not lemmatizer.has_table or lemmatizer.language is None:
        return []
    from simplemma.strategies.dictionaries import DefaultDictionaryFactory  # pyright: ignore[reportMissingImports] -- an extra

    words = DefaultDictionaryFactory().get_dictionary(lemmatizer.language)
    names = (word.decode() if isinstance(word, bytes) else str(word) for word in words)
    return sorted({name for name in names if name == name.lower()})


# --- Corpora -------------------------------------------------------------------------------------------


def _write_index(folder: Path, index: LoadedIndex, options: ExportOptions) -> dict[str, Any]:
    """Write the usages of the frequent words of an index; return its entry in ``config.json``."""
    from elmo.serve.explore import map_usages

    where = f"indexes/{index.name}"
    target = folder / where
    target.mkdir(parents=True)
    words = choose_words(index, options.n_words)
    logger.info("arranging the usages of %d words of the index %s", len(words), index.name)
    items: list[dict[str, Any]] = []
    vectors: list[Any] = []
    first = 0
    for number, word in enumerate(words):
        request = {"word": word, "limit": options.n_usages, "n_clusters": None, "seed": 0, "to": None}
        answer = map_usages(index, request)
        file = f"{number}.json.gz"
        _write_json(target / file, answer)
        vectors.append(_to_int8(index.index.vectors([line["number"] for line in answer["lines"]])))
        items.append({"word": word, "file": file, "first": first, "n": len(answer["lines"]), "total": answer["total"]})
        first += len(answer["lines"])
    width = index.index.width
    (target / "vectors.bin").write_bytes(np.concatenate([np.zeros((0, width), np.int8), *vectors]).tobytes())
    _write_json(target / "words.json.gz", items)
    entry = index.describe()
    entry["examples"] = [word for word in entry.get("examples", ()) if word in words]
    return {
        "entry": entry, "folder": where, "width": width, "start": str(index.index.start),
        "keep_case": index.index.key("A") == "A", "is_simplified": index.model.elmo.config.alphabet == "simplified",
    }  # fmt: skip


def choose_words(index: LoadedIndex, n: int) -> list[str]:
    """Return the words of an index to export: the examples that the page shows, then the most frequent words.

    The most frequent words of all, which are function words, are used only if the index has few words.
    """
    counts = {
        word: n_usages for word, (n_usages, _) in index.index.words.items()
        if n_usages >= MIN_USAGES and any(map(str.isalpha, word))
    }  # fmt: skip
    ranking = sorted(counts, key=lambda word: (-counts[word], word))
    examples = [word for word in index.describe().get("examples", ()) if word in counts]
    skipped = min(SKIPPED_WORDS, max(0, len(ranking) - n))
    return list(dict.fromkeys([*examples, *ranking[skipped:]]))[:n]


def _to_int8(vectors: Any) -> Any:
    """Round unit vectors (usage, width) to 8 bits, which changes cosines by about 0.001."""
    rows = unit_rows(vectors)
    highest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-9)
    return np.round(rows / highest * 127).astype(np.int8)


def _write_periods(folder: Path, periods: Periods, options: ExportOptions) -> dict[str, Any]:
    """Write the words that changed most, with their usages; return the entry in ``config.json``."""
    target = folder / "change"
    target.mkdir()
    ranking = periods.rank({"n": options.n_words, "offset": 0, "query": None})
    ranking["total"] = len(ranking["words"])
    for number, row in enumerate(ranking["words"]):
        _write_json(target / f"{number}.json.gz", periods.describe_word(row["word"]))
    _write_json(target / "words.json.gz", ranking)
    return {"folder": "change", "periods": list(periods.changes.periods)}

"""Build the documentation site in English and Chinese: ``python docs/site/build.py [OUTPUT]``.

The pages of ``docs/`` are plain Markdown and can be read in the repository. This script adds the generated reference
and the changelog, builds both languages with Zensical, and checks every link. The site works from disk and requests
nothing from other hosts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import reference

SITE = Path(__file__).resolve().parent
DOCS = SITE.parent
ROOT = DOCS.parent
REPOSITORY = "https://github.com/pyelmo/pyelmo"
_LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(?=[#)])")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# Between two Chinese characters, or after a full-width mark (not “”, which English pages have as well).
_HAN, _MARK = r"\u4e00-\u9fff", r"\u3001\u3002\u300a\u300b\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
_CHINESE_BREAK = re.compile(
    rf"(?<=[{_HAN}{_MARK}])\n *(?=[{_HAN}{_MARK}“])|(?<=[{_MARK}])\n *(?=[A-Za-z0-9\[`“](?!``|\d*\. ))"
)
_NAMES = {"en": "English", "zh": "中文"}


def build(output: Path, work: Path) -> None:
    """Build the site of both languages in the folder ``work``, check it, and move it to ``output``."""
    shutil.rmtree(work, ignore_errors=True)
    site = work / "site"
    for language in _NAMES:
        pages = work / language
        assemble_pages(language, pages)
        config = work / f"{language}.toml"
        config.write_text(format_toml(configure(language, pages)), encoding="utf-8")
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(config)]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(SITE)}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}")
    link_translations(site)
    finish_tables(site)
    if broken := list(find_broken_links(site)):
        sys.exit("\n".join(broken))
    shutil.rmtree(output, ignore_errors=True)
    shutil.move(site, output)
    shutil.rmtree(work)


def assemble_pages(language: str, target: Path) -> None:
    """Copy the pages of a language, with links that fit the site, and write the generated pages."""
    source = DOCS if language == "en" else DOCS / language
    excluded = {*(DOCS / other for other in _NAMES), SITE} - {source}
    for path in sorted(source.rglob("*")):
        if path.is_dir() or excluded.intersection(path.parents):
            continue
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = adapt_links(path.read_text(encoding="utf-8"), path, source)
            text = re.sub("^```console$", "```bash", text, flags=re.MULTILINE)  # without $, console is shown as output
            copy.write_text(join_chinese_lines(text), encoding="utf-8")
        else:
            shutil.copyfile(path, copy)
    shutil.copytree(SITE / "assets", target / "site")
    if language == "en":
        changelog = ROOT / "CHANGELOG.md"
        text = adapt_links(changelog.read_text(encoding="utf-8"), DOCS / "CHANGELOG.md", source, folder=ROOT)
        (target / "CHANGELOG.md").write_text(text, encoding="utf-8")
        reference.write_pages(ROOT / "src", target / "reference")


def adapt_links(text: str, page: Path, source: Path, folder: Path | None = None) -> str:
    """Point links to files outside ``source`` to the other language or to the repository."""

    def adapt(match: re.Match[str]) -> str:
        path = Path(os.path.normpath((folder or page.parent) / match[1]))
        if folder and path.is_relative_to(DOCS):
            return Path(os.path.relpath(path, page.parent)).as_posix()
        if path == ROOT / "CHANGELOG.md":
            path = DOCS / path.name
        if path.is_relative_to(source):
            inside = source == DOCS and any(path.is_relative_to(DOCS / name) for name in _NAMES)
            if not inside:
                return Path(os.path.relpath(path, page.parent)).as_posix()
        if path.is_relative_to(DOCS):  # the other language
            return re.sub(r"\.md$", ".html", Path(os.path.relpath(path, page.parent)).as_posix())
        kind = "tree" if path.is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{path.relative_to(ROOT).as_posix()}"

    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [_LINK.sub(adapt, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(adapt, text[end:])])


def join_chinese_lines(text: str) -> str:
    """Remove the line breaks between Chinese characters, which a browser would show as spaces."""
    parts, end = [], 0
    for code in _FENCE.finditer(text):
        parts += [_CHINESE_BREAK.sub("", text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _CHINESE_BREAK.sub("", text[end:])])


def navigate(language: str, pages: Path) -> list[dict[str, Any]]:
    """Return the navigation of a language: one section per title, with every page of the language."""
    sections = tomllib.loads((SITE / "navigation.toml").read_text(encoding="utf-8"))[language]
    listed: dict[str, list[str]] = {
        title: [
            path.relative_to(pages).as_posix()
            for pattern in patterns
            for path in sorted(pages.glob(pattern))
            if path.name != "index.md" or pattern == "index.md"
        ]
        for title, patterns in sections.items()
    }
    every = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    missing = every - {name for names in listed.values() for name in names}
    listed[list(listed)[2 if len(listed) > 2 else -1]] += sorted(missing)
    return [{title: names[0] if len(names) == 1 else names} for title, names in listed.items() if names]


def configure(language: str, pages: Path) -> dict[str, Any]:
    """Return the configuration of Zensical for one language."""
    modes = [("default", "sun", "light", "Use dark colors"), ("slate", "moon", "dark", "Use light colors")]
    if language == "zh":
        modes = [("default", "sun", "light", "切换为深色"), ("slate", "moon", "dark", "切换为浅色")]
    home = {"en": ("index.html", "zh/index.html"), "zh": ("../index.html", "index.html")}[language]
    project = {
        "site_name": "elmo",
        "site_description": "Word vectors that depend on the whole sentence"
        if language == "en"
        else "根据整句语境计算词向量",
        "docs_dir": language,  # relative to the configuration
        "site_dir": "site" if language == "en" else f"site/{language}",
        "use_directory_urls": False,
        "copyright": f'<a href="{REPOSITORY}">{REPOSITORY}</a>',  # repo_url would ask GitHub for the number of stars
        "nav": navigate(language, pages),
        "extra_css": ["site/style.css"],
        "theme": {
            "language": language,
            "font": False,
            "features": ["navigation.footer", "navigation.tabs", "navigation.top", "toc.follow"],
            "palette": [
                {
                    "media": f"(prefers-color-scheme: {preference})",
                    "scheme": scheme,
                    "toggle": {"icon": f"lucide/{icon}", "name": name},
                }
                for scheme, icon, preference, name in modes
            ],
        },
        "extra": {
            "generator": False,
            "alternate": [
                {"name": name, "link": link, "lang": other}
                for (other, name), link in zip(_NAMES.items(), home, strict=True)
            ],
            "polyfills": [{"path": "site/iframe-worker.js", "type": "text/javascript", "async": False, "defer": False}],
        },
        "plugins": {"offline": {}},
        "markdown_extensions": {
            "attr_list": {},
            "mathml": {},
            "md_in_html": {},
            "tables": {},
            "toc": {"permalink": True, "slugify": {"object": "pymdownx.slugs.slugify", "kwds": {"case": "lower"}}},
            "pymdownx": {
                "details": {},
                "highlight": {},
                "superfences": {"custom_fences": [{"name": "math", "class": "math", "format": "mathml.format_block"}]},
            },
        },
    }
    return {"project": project}


def format_toml(value: Any) -> str:
    """Return TOML; JSON's strings, numbers and arrays are TOML as well."""

    def inline(item: Any) -> str:
        if isinstance(item, dict):
            return (
                "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)} = {inline(x)}" for key, x in item.items()) + "}"
            )
        if isinstance(item, list):
            return "[" + ", ".join(map(inline, item)) + "]"
        return json.dumps(item, ensure_ascii=False)

    return "".join(f"{key} = {inline(item)}\n" for key, item in value.items())


def link_translations(output: Path) -> None:
    """Let the language menu of a page lead to the same page in the other language, where there is one."""
    menu = re.compile(r'(?<=<a href=")[^"]*(?=" hreflang="(en|zh)")')
    alternates = re.compile(r'<link rel="?alternate"?[^>]* hreflang[^>]*>')  # a script would request their site maps
    for path in sorted(output.rglob("*.html")):
        name = path.relative_to(output)
        name = name.relative_to("zh") if name.parts[0] == "zh" else name

        def find_twin(match: re.Match[str], path: Path = path, name: Path = name) -> str:
            twin = (output if match[1] == "en" else output / "zh") / name
            return Path(os.path.relpath(twin, path.parent)).as_posix() if twin.exists() else match[0]

        path.write_text(alternates.sub("", menu.sub(find_twin, path.read_text(encoding="utf-8"))), encoding="utf-8")


def finish_tables(output: Path) -> None:
    """Make empty header cells data cells, as screen readers need a text, and show choices as a|b, with line breaks."""
    corner = re.compile(r"<th([^>]*)>\s*</th>")
    choice = re.compile(r"(?<=<code>)[^<\n]*\|[^<\n]*(?=</code>)")
    for path in sorted(output.rglob("*.html")):
        text = corner.sub(r"<td\1></td>", path.read_text(encoding="utf-8"))
        text = choice.sub(lambda found: re.sub(r"\\?\|", "|<wbr>", found[0]), text)
        path.write_text(text, encoding="utf-8")


class _Page(HTMLParser):
    """The targets and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the attributes that lead to other files."""
        values = dict(attrs)
        self.anchors.update(value for key in ("id", "name") if (value := values.get(key)))
        self.targets += [value for key in ("href", "src") if (value := values.get(key)) is not None]


def find_broken_links(output: Path) -> Iterator[str]:
    """Yield links that lead to no file or to no anchor of the site."""
    pages = {path: _Page(path) for path in sorted(output.rglob("*.html")) if path.name != "404.html"}
    for path, page in pages.items():
        for target in page.targets:
            address = urlsplit(target)
            if address.scheme or address.netloc:
                continue
            file = Path(os.path.normpath(path.parent / unquote(address.path))) if address.path else path
            file = file / "index.html" if file.is_dir() else file
            anchor = unquote(address.fragment)
            if not file.is_file():
                yield f"{path.relative_to(output)}: no file {target}"
            elif anchor and file in pages and anchor not in pages[file].anchors | {"__skip"}:
                yield f"{path.relative_to(output)}: no anchor {target}"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve()
    build(target, target.with_name(f"{target.name}.work"))

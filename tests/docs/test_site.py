"""The documentation site: it builds without warnings, works from disk, can be searched, and is accessible."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
SAMPLED = ["index.html", "guide/12-elmo-gpt-bert.html", "vectors.html", "gallery.html", "glossary.html"]
Open = Callable[..., Any]

needs_builder = pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None or importlib.util.find_spec("griffe") is None,
    reason="needs the extra docs",
)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="needs Chromium and the package playwright",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as by ``make docs``, which fails on warnings and broken links."""
    target = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, DOCS / "site/build.py", target], capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(site: Path, browser: Any) -> Iterator[Open]:
    """Open a page from disk; fail after the test on console messages and on requests to other hosts."""
    problems: list[str] = []
    contexts: list[Any] = []

    def route(route: Any) -> None:
        if route.request.url.startswith(("file:", "data:")):
            route.continue_()
        else:
            problems.append(f"request to {route.request.url}")
            route.abort()

    def open_at(name: str, **options: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.route("**/*", route)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto((site / name).as_uri())
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert not problems, problems


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_is_in_the_navigation(language: str) -> None:
    sections = tomllib.loads((DOCS / "site/navigation.toml").read_text(encoding="utf-8"))[language]
    folder = DOCS if language == "en" else DOCS / language
    listed = {
        path
        for patterns in sections.values()
        for pattern in patterns
        if not pattern.startswith(("reference/", "CHANGELOG"))  # written by the build
        for path in sorted(folder.glob(pattern)) or [folder / pattern]
    }
    other = {DOCS / "site", DOCS / "zh"} - {folder}
    pages = {path for path in folder.rglob("*.md") if not other.intersection(path.parents)}
    assert pages - listed == set(), "add these pages to docs/site/navigation.toml"
    assert listed - pages == set()


def test_every_page_has_one_title_and_ends_with_a_next_step() -> None:
    """The changelog and the reference are lists to look something up in, written by the build: they have none."""
    marks = {"en": "\n\nNext: ", "zh": "\n\n接下来：|\n\n下一章："}
    tables = {"en": "\n\n## What next\n", "zh": "\n\n## 接下来\n"}  # the start page leads to several pages
    for page in [path for path in DOCS.rglob("*.md") if DOCS / "site" not in path.parents]:
        language = "zh" if DOCS / "zh" in page.parents else "en"
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1, page
        mark = tables[language] if page.name == "index.md" else marks[language]
        *before, end = re.split(mark, text.rstrip())
        assert before, f"{page} has no {mark!r}"
        assert page.name == "index.md" or "\n\n" not in end, f"{page} does not end with its next step"
        links = [page.parent / name for name in re.findall(r"\]\(([^):#]+\.md)[#)]", end)]
        assert links, f"{page} has no next step"
        assert not [link for link in links if link.samefile(page)], f"{page} leads to itself"


def test_chinese_pages_link_to_chinese_pages() -> None:
    """A link to a page that has a Chinese twin leads to the twin."""
    for page in (DOCS / "zh").rglob("*.md"):
        for name in re.findall(r"\]\(([^):#]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            target = (page.parent / name).resolve()
            if target.is_relative_to(DOCS) and not target.is_relative_to(DOCS / "zh"):
                twin = DOCS / "zh" / target.relative_to(DOCS)
                assert not twin.exists(), f"{page.relative_to(DOCS)} links to {name}"


@needs_builder
@pytest.mark.slow
def test_the_reference_has_every_command_and_every_public_name(site: Path) -> None:
    import elmo
    from elmo import lexicon

    commands = (site / "reference/cli.html").read_text(encoding="utf-8")
    for command in ("embed", "train", "perplexity", "task-train", "serve"):
        assert f'id="elmo-{command}"' in commands
    assert "--batch-size" in commands
    assert "\\|" not in commands  # the choices of an option
    for package, page in ((elmo, "elmo"), (lexicon, "elmo.lexicon")):
        text = (site / f"reference/{page}.html").read_text(encoding="utf-8")
        assert [name for name in package.__all__ if f">{name}<" not in text] == []


@needs_builder
@pytest.mark.slow
def test_lines_of_chinese_text_are_joined_without_spaces(site: Path) -> None:
    for page in (site / "zh").rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert re.findall(r".{0,9}[\u4e00-\u9fff，。：；、] *\n *[\u4e00-\u9fff].{0,9}", text) == [], page


@needs_builder
@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("page", "query"), [("index.html", "perplexity"), ("zh/index.html", "困惑度")])
def test_the_search_works_from_disk(open_page: Open, page: str, query: str) -> None:
    shown = open_page(page)
    shown.click(".md-search__button")
    shown.get_by_role("combobox").fill(query)
    shown.get_by_role("option").filter(has_text=re.compile(query, re.IGNORECASE)).first.click()
    shown.wait_for_load_state()
    assert query in shown.locator("article").inner_text().lower()


@needs_builder
@needs_browser
@pytest.mark.slow
def test_the_language_menu_leads_to_the_same_page(open_page: Open) -> None:
    page = open_page("index.html")
    page.hover("button[aria-label*=anguage]")
    page.click("a[hreflang=zh]")
    page.wait_for_url("**/zh/index.html")
    assert page.locator("html").get_attribute("lang") == "zh"


@needs_builder
@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", [*SAMPLED, *(f"zh/{page}" for page in SAMPLED), "reference/cli.html"])
def test_axe_finds_no_violation(open_page: Open, page: str, theme: str) -> None:
    package = importlib.util.find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        pytest.skip("needs the package axe-playwright-python")
    shown = open_page(page, color_scheme=theme)
    shown.evaluate((Path(package.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = shown.evaluate("() => axe.run({preload: false})")["violations"]
    report = [(rule["id"], [node["html"][:200] for node in rule["nodes"]][:4]) for rule in found]
    assert not found, json.dumps(report, indent=1)

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from elmo.engine import compiled
from tests.engine.cases import BUILT_VARIANTS, FOLDER

SCRIPT = Path(__file__).parents[1] / "build_kernels.py"
IS_SUPPORTED = platform.machine().lower() in {"x86_64", "amd64", "aarch64", "arm64"} and sys.platform != "win32"
needs_variants = pytest.mark.skipif(not IS_SUPPORTED, reason="this platform has no variants")


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of the build script that compiles a copy of the C file."""
    if not SCRIPT.is_file():
        pytest.skip("the source tree has no build script")
    engine = tmp_path / "src" / "elmo" / "engine"
    engine.mkdir(parents=True)
    shutil.copy(FOLDER / "kernels.c", engine)
    script = Path(shutil.copy(SCRIPT, tmp_path))
    spec = importlib.util.spec_from_file_location("build_kernels_copy", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert engine / "kernels.c" == module.SOURCE
    monkeypatch.delenv(module.VARIABLE, raising=False)
    return module


def built_files(build: ModuleType) -> list[str]:
    return sorted(path.name for path in build.SOURCE.parent.iterdir() if path.name != "kernels.c")


@pytest.mark.slow
@needs_variants
def test_every_variant_is_compiled_and_can_be_loaded(
    build: ModuleType, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setenv("CC", "cc")
    files = build.compile_kernels()
    variants = build.VARIANTS[platform.machine().lower()]
    assert [file.name for file in files] == [f"kernels.{variant}.so" for variant in variants]
    assert built_files(build) == sorted(file.name for file in files)  # and no temporary file
    assert "warning" not in capfd.readouterr().err
    assert set(variants) <= set(compiled.VARIANTS)
    for variant in compiled._supported_variants():
        library = compiled.Library(build.SOURCE.with_name(f"kernels.{variant}.so"))
        assert library.variant == variant
        assert "float32" in library.precisions


@needs_variants
@pytest.mark.parametrize("compiler", ["/missing/compiler", "false"])
def test_without_a_compiler_the_build_warns_and_continues(
    build: ModuleType, compiler: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert build.compile_kernels() == []
    assert built_files(build) == []
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == len(build.VARIANTS[platform.machine().lower()])
    assert all(line.startswith("warning: kernels.") and " was not built: " in line for line in lines)


def test_the_build_fails_without_a_compiler_if_kernels_are_required(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/missing/compiler")
    monkeypatch.setenv("ELMO_BUILD_KERNELS", "1")
    with pytest.raises(SystemExit, match=r"no kernels were built, but ELMO_BUILD_KERNELS=1 requires them"):
        build.compile_kernels()


def test_kernels_can_be_skipped(
    build: ModuleType, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/missing/compiler")
    monkeypatch.setenv("ELMO_BUILD_KERNELS", "0")
    assert build.compile_kernels() == []
    assert capfd.readouterr().err == ""


def test_an_unknown_platform_has_no_kernels(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    assert build.compile_kernels() == []


def test_the_compiler_is_cc_or_the_one_of_python_if_it_is_installed(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "ccache gcc -m64")
    assert build.find_compiler() == ["ccache", "gcc", "-m64"]
    monkeypatch.delenv("CC")
    for command, expected in (("/missing/clang -pthread", ["cc"]), (f"{sys.executable} -x", [sys.executable, "-x"])):
        monkeypatch.setattr(build.sysconfig, "get_config_var", lambda name, command=command: command)
        assert build.find_compiler() == expected


@needs_variants
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_the_installed_package_has_kernels_where_a_compiler_exists() -> None:
    assert BUILT_VARIANTS  # otherwise every test of a compiled variant would be skipped

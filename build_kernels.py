"""Compile src/elmo/engine/kernels.c, once for each instruction set of this platform.

Runs as a build hook of hatchling, also for editable installs, or by hand: ``python build_kernels.py``. Without a
C compiler, or on a platform without a variant, the package is built without kernels and computes with torch.
The environment variable ``ELMO_BUILD_KERNELS`` is ``0`` to skip the kernels, or ``1`` to fail without them.
The shared libraries do not use Python's API: one build serves every version of Python.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent / "src" / "elmo" / "engine" / "kernels.c"
VARIABLE = "ELMO_BUILD_KERNELS"
FLAGS = [
    "-O3",
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
]
VARIANTS = {
    "x86_64": {
        "avx512bf16": ["-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"],
        "avx512": ["-march=x86-64-v4"],
        "avx2": ["-march=x86-64-v3"],
    },
    "aarch64": {"neon": ["-march=armv8-a"]},
}
VARIANTS |= {"amd64": VARIANTS["x86_64"], "arm64": VARIANTS["aarch64"]}


def find_compiler() -> list[str]:
    """Return the command of the C compiler: CC, or the one that built Python if it is installed here, or cc."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    command = shlex.split(sysconfig.get_config_var("CC") or "cc")
    return command if shutil.which(command[0]) else ["cc"]


def compile_kernels() -> list[Path]:
    """Compile all variants of this platform and return the files; existing files are replaced."""
    variants = VARIANTS.get(platform.machine().lower(), {})
    if os.environ.get(VARIABLE) == "0" or sys.platform == "win32":
        return []
    compiler = find_compiler()
    files: list[Path] = []
    for name, flags in variants.items():
        target = SOURCE.with_name(f"kernels.{name}.so")
        temporary = target.with_suffix(f".{os.getpid()}.tmp")
        try:
            subprocess.run([*compiler, *FLAGS, *flags, str(SOURCE), "-o", str(temporary)], check=True)  # noqa: S603
            temporary.replace(target)
            files.append(target)
        except (OSError, subprocess.CalledProcessError) as error:
            temporary.unlink(missing_ok=True)
            print(f"warning: {target.name} was not built: {error}", file=sys.stderr)  # noqa: T201
    if not files and os.environ.get(VARIABLE) == "1":
        raise SystemExit(f"no kernels were built, but {VARIABLE}=1 requires them")
    return files


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run by hand
    pass
else:

    class KernelsHook(BuildHookInterface):
        """Compiles the kernels before a wheel is built; a source archive contains the C file only."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile, and mark the wheel as one for this platform."""
            if self.target_name != "wheel":
                return
            files = compile_kernels()
            if files:
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
                build_data["artifacts"] += [f"/{file.relative_to(SOURCE.parents[3])}" for file in files]


if __name__ == "__main__":
    for file in compile_kernels():
        print(file)  # noqa: T201

"""Optional libraries that are installed but broken: what needs them gives one line, and everything else works."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from elmo.errors import MissingExtraError, importing_extra

ROOT = Path(__file__).parents[1]
ERRORS = ["OSError('libx.so.1: cannot open shared object file')", "ImportError('undefined symbol: y')",
          "RuntimeError('no GPU')", "ValueError('dtype size changed')", "AttributeError('np.float_')"]  # fmt: skip
MODULES = {"scikit-learn": "sklearn", "prometheus-client": "prometheus_client"}

CODE = """
import logging, sys
import numpy as np
from pathlib import Path
logging.basicConfig(level=logging.WARNING)
from elmo.embed.elmo import Elmo
from elmo.errors import MissingExtraError
from elmo.cli import main
from tests.formats.tiny import tiny_model

elmo = Elmo(tiny_model(softmax=True))
assert np.isfinite(elmo.encode("the river bank").vectors).all()
Path("text.txt").write_text("the river bank lends money .\\n" * 60)
elmo.save_pretrained("model")
assert main(["embed", "text.txt", "--model", "model", "--out", "v.h5"]) == 0
assert main(["score", "text.txt", "--model", "model"]) == 0
assert main(["train", "text.txt", "--out", "m", "--preset", "tiny", "--epochs", "1", "--samples", "0"]) == 0
assert main(["substitutes", "the [[bank]]", "--model", "model"]) == 0


def check(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except MissingExtraError as error:
        assert "\\n" not in str(error)
        assert "is broken" in str(error), error
        assert "pip install --force-reinstall 'pyelmo[" in str(error), error
    else:
        raise AssertionError(call)


from elmo.jobs.reader import _read_parquet
from elmo.jobs.writers import _import_pyarrow
from elmo.lexicon.clustering import cluster
from elmo.lexicon.neighbors import _import_usearch
from elmo.plots.figure import check_picture
from elmo.formats import onnx
from elmo.serve.client import _import_httpx
from elmo.serve.server import _check_extra
from elmo.tasks.features.transformers import TransformerEncoder
from elmo.tasks.scores.coreference import check_extra
from elmo.text.chinese import check_opencc
from elmo.text.lines import read_lines
from elmo.text.tokenizers import load_tokenizer
from elmo.train.log import TensorBoard

Path("a.zst").write_bytes(b"\\x28\\xb5\\x2f\\xfd" + bytes(20))
check(check_picture, Path("a.png"))
check(_import_pyarrow)
check(_read_parquet, Path("a.parquet"))
check(cluster, np.random.rand(9, 4), method="kmeans")
check(_import_usearch)
check(onnx.write, elmo.pretrained, Path("onnx"))
check(_import_httpx)
check(_check_extra)
check(TransformerEncoder, "somebody/model")
check(check_extra)
check(check_opencc)
check(list, read_lines(Path("a.zst")))
check(load_tokenizer, "spacy:de")
check(lambda: load_tokenizer("zh")("\u6cb3"))
check(TensorBoard, "board")
print("sound")
"""


def extras() -> list[str]:
    """The modules of all optional dependencies."""
    lists = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[<>=\[~!;]", line)[0] for extra, lines in lists.items() if extra not in ("all", "dev")
             for line in lines}  # fmt: skip
    return sorted({MODULES.get(name, name.replace("-", "_")) for name in names} - {"pyelmo", "numpy", "torch"})


@pytest.mark.parametrize("error", [eval(error) for error in ERRORS])
def test_any_error_of_an_import_is_one_line(error: Exception) -> None:
    broken = r"a picture .* is broken \(\w+Error: .*\): pip install .*\[plots\]"
    with pytest.raises(MissingExtraError, match=broken), importing_extra("a picture", extra="plots"):
        raise error
    missing = r"requires an optional dependency: pip install 'pyelmo\[plots\]'"
    with pytest.raises(MissingExtraError, match=missing), importing_extra("a picture", extra="plots"):
        raise ModuleNotFoundError("no module")


@pytest.mark.slow
def test_broken_optional_libraries_disable_only_what_needs_them(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    for name, error in zip(extras(), itertools.cycle(ERRORS), strict=False):
        (broken / name).mkdir(parents=True)
        (broken / name / "__init__.py").write_text(f"raise {error}\n")
    path = os.pathsep.join([str(broken), str(ROOT), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "sound"
    assert "Traceback" not in done.stderr

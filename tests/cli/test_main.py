"""Exit codes, errors in one line, global options, and hostile names."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import elmo
from elmo.cli import main
from elmo.cli.app import move_global_options
from elmo.cli.console import Console
from elmo.text.display import one_line
from tests.cli.conftest import Outcome, Run, assert_fails

Start = Callable[..., subprocess.Popen[str]]


def test_the_version_is_that_of_the_package(run: Run) -> None:
    assert run("--version") == Outcome(0, f"elmo {elmo.__version__}\n", "")


def test_no_arguments_show_the_help(run: Run) -> None:
    bare = run()
    assert bare == run("--help")
    assert bare.code == 0
    assert "Usage: elmo" in bare.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["embd"], "embd"),
        (["--bogus"], "--bogus"),
        (["embed"], "INPUT"),
        (["embed", "corpus.txt", "--bogus"], "--bogus"),
        (["embed", "corpus.txt", "--layers", "bottom"], "--layers"),
        (["embed", "corpus.txt", "--layers", "-1"], "--layers"),
        (["embed", "corpus.txt", "--format", "xml"], "--format"),
        (["embed", "corpus.txt", "--dtype", "int8"], "--dtype"),
        (["embed", "corpus.txt", "--errors", "ignore"], "--errors"),
        (["embed", "corpus.txt", "--start", "carry"], "--start"),
        (["embed", "corpus.txt", "--batch-size", "0"], "--batch-size"),
        (["embed", "corpus.txt", "--batch-size", "many"], "--batch-size"),
        (["embed", "corpus.txt", "--shard-tokens", "0"], "--shard-tokens"),
        (["info", "model", "other"], "other"),
        (["convert", "model"], "OUT"),
        (["convert", "model", "out", "--to", "gguf"], "--to"),
        (["convert", "model", "out", "--dtype", "int4"], "--dtype"),
        (["warm", "model"], "TEXT"),
        (["compare"], "WORD"),
        (["compare", "bank"], "SENTENCE"),
        (["compare", "bank", "a", "b", "--layers", "2.5"], "--layers"),
        (["--log-format", "xml", "info"], "--log-format"),
        (["info", "--log-format"], "--log-format"),
        (["info", "--verbose", "--quiet"], "--quiet"),
    ],
)
def test_wrong_usage_gives_one_line_and_code_2(run: Run, arguments: list[str], part: str) -> None:
    outcome = run(*arguments)
    assert_fails(outcome, part, "--help)", code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("embed x --batch-size many", "'--batch-size': expected a whole number, found 'many' (see"),
        ("embed x --batch-size 0", "'--batch-size': expected at least 1, found '0' (see"),
        ("train x --out y --heldout few", "'--heldout': expected a number, found 'few' (see"),
        ("train x --out y --preset tinny", "'--preset': 'tinny' is not one of 'tiny', 'mini',"),
    ],
)
def test_a_wrong_value_gives_a_plain_message(run: Run, arguments: str, message: str) -> None:
    assert_fails(run(*arguments.split()), f"Invalid value for {message}", code=2)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["embed", "nothing.txt", "--model", "model"], "nothing.txt"),
        (["embed", "none/*.txt", "--model", "model"], "none/*.txt"),
        (["embed", "corpus.txt", "--model", ""], "model must be a name, a path or a Hub id"),
        (["embed", "corpus.txt", "--model", "nowhere"], "nowhere"),
        (["embed", "corpus.txt", "--model", "more"], "more"),
        (["embed", "corpus.txt", "--model", "model", "--layers", "7"], "7"),
        (["embed", "corpus.txt", "--model", "model", "--out", "v.doc"], "v.doc"),
        (["embed", "corpus.txt", "--model", "model", "--out", "corpus.txt/v.npz"], "v.npz"),
        (["embed", "corpus.txt", "--model", "model", "--start", "warm"], "elmo warm"),
        (["embed", "corpus.txt", "--model", "model", "--tokenizer", "klingon"], "klingon"),
        (["embed", "corpus.txt", "--model", "model", "--device", "toaster"], "toaster"),
        (["embed", "corpus.txt", "--model", "model", "--format", "conllu"], "corpus.txt"),
        (["embed", "corpus.txt", "--model", "model", "--format", "tokens", "--split"], "split"),
        (["embed", "latin.txt", "--model", "model"], "latin.txt:1"),
        (["info", ""], "model must be a name, a path or a Hub id"),
        (["info", "nowhere"], "nowhere"),
        (["info", "corpus.txt"], "corpus.txt"),
        (["info", "x" * 5000], "xxx"),
        (["convert", "nowhere", "out"], "nowhere"),
        (["convert", "model", "more"], "more"),
        (["convert", "model", "out", "--to", "hdf5", "--dtype", "float16"], "float32"),
        (["warm", "model", "nothing.txt"], "nothing.txt"),
        (["warm", "model", "empty.txt"], "the text has no tokens"),
        (["warm", "model", "corpus.txt", "--out", "more"], "more"),
        (["compare", "bank", "a bank", "--model", "model"], "two or more"),
        (["compare", "bank", "a bank", "a river", "--model", "model"], "sentence 2"),
        (["compare", "bank", "a bank", "a bank", "--model", "model", "--layers", "9"], "9"),
        (["compare", "bank", "a bank", "a bank", "--model", "model", "--picture", "x.bmp"], "x.bmp"),
        (["compare", "bank", "a bank", "a bank", "--model", "model", "--picture", "corpus.txt/x.png"], "is a file"),
    ],
)
def test_an_error_gives_one_line_and_code_1(run: Run, here: Path, arguments: list[str], part: str) -> None:
    (here / "latin.txt").write_bytes("café\n".encode("latin-1"))
    (here / "empty.txt").write_bytes(b"\n\n")
    before = sorted(here.rglob("*"))
    assert_fails(run(*arguments), part)
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("name", ["new\nline", "\x1b[31mred", "bad\udcff", "tab\t", "\u2028", "-", "'quoted'", "[[x]]"])
def test_hostile_names_stay_on_one_line(run: Run, here: Path, name: str) -> None:
    assert_fails(run("info", "--", name))
    path = here / f"{name}.txt"
    try:
        path.write_text("the bank\n", encoding="utf-8")
    except (OSError, UnicodeError):
        pytest.skip("this file system does not allow the name")
    outcome = run("embed", "--model", "model", "--", str(path))
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["tokens"] == ["the", "bank"]
    path.write_bytes(b"\xff\n")
    assert_fails(run("embed", "--model", "model", "--", str(path)))


def test_one_line_escapes_control_characters() -> None:
    assert one_line("a\nb\x1b[0m\ud800é\u202e") == "a\\nb\\x1b[0m\\ud800é\\u202e"


def test_an_unreadable_folder_gives_one_line(run: Run, here: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root can read everything")
    (here / "model" / "config.json").chmod(0)
    assert_fails(run("info", "model"), "config.json")


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (OSError(28, "No space left on device", "v.npz"), 1, "v.npz: No space left on device"),
        (OSError(28, "No space left on device"), 1, "stdout: No space left on device"),
        (PermissionError(13, "Permission denied", "v\n.npz"), 1, "v\\n.npz: Permission denied"),
        (MemoryError(), 1, "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory:\nyou tried"), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("two\nlines"), 70, "unexpected ZeroDivisionError: two\\nlines; please report this bug"),
    ],
)
def test_every_other_error_has_its_code_and_message(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, part: str
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("elmo.formats.describe", fail)
    assert_fails(run("info", "model"), part, code=code)


def test_a_second_ctrl_c_while_the_message_is_printed_is_ignored(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    def press_again(console: Console, line: str) -> None:
        signal.raise_signal(signal.SIGINT)
        print(line, file=sys.stderr)

    monkeypatch.setattr("elmo.formats.describe", interrupt)
    monkeypatch.setattr(Console, "print_line", press_again)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
    try:
        assert_fails(run("info", "model"), "interrupted", code=130)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_verbose_shows_only_the_traceback_of_unexpected_errors(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails(run("--verbose", "info", "nowhere"))
    monkeypatch.setattr("elmo.formats.describe", lambda _: 1 // 0)
    outcome = run("info", "model", "--verbose")
    assert outcome.code == 70
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("elmo: unexpected ZeroDivisionError")


def test_with_json_every_line_is_an_object(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = run("--log-format", "json", "info", "nowhere")
    misused = run("embd", "--log-format=json")
    done = run("embed", "corpus.txt", "--model", "model", "--out", "v.npz", "--log-format", "json")
    monkeypatch.setattr("elmo.formats.describe", lambda _: 1 // 0)
    unexpected = run("info", "model", "-v", "--log-format", "json")
    for outcome, code, kind in (
        (failed, 1, "FormatError"),
        (misused, 2, "UsageError"),
        (unexpected, 70, "ZeroDivisionError"),
    ):
        assert outcome.code == code
        (line,) = [json.loads(line) for line in outcome.err.splitlines()][-1:]
        assert (line["level"], line["error"], line["exit_code"]) == ("error", kind, code)
        assert line["message"]
        assert line["time"].endswith("+00:00")
    assert "Traceback" in json.loads(unexpected.err.splitlines()[-1])["traceback"]
    (line,) = map(json.loads, done.err.splitlines())
    assert (line["level"], line["sentences"], line["files"]) == ("info", 4, ["v.npz"])


def test_global_options_work_anywhere_before_a_double_dash() -> None:
    assert move_global_options(["embed", "a", "-q", "--log-format", "json", "--", "-v"]) == [
        "-q", "--log-format", "json", "embed", "a", "--", "-v",
    ]  # fmt: skip
    assert move_global_options(["info", "--log-format"]) == ["--log-format", "info"]
    assert move_global_options([]) == []


def test_logging_and_warnings_are_restored(run: Run) -> None:
    loggers = [logging.getLogger(name) for name in (None, "elmo", "elmo.cli", "py.warnings")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    assert run("-v", "info", "model").code == 0
    assert [(logger.level, list(logger.handlers)) for logger in loggers] == before


def test_library_warnings_are_shown_unless_quiet(run: Run, here: Path) -> None:
    (here / "model" / "SHA256SUMS").unlink()
    assert run("info", "model").err.startswith("elmo: warning: cannot check model for damage: it has no SHA256SUMS")
    assert run("info", "model", "--quiet").err == ""


# The rest runs the real command in a new process.


@pytest.mark.slow
def test_the_real_command_runs(start: Start) -> None:
    process = start("info", "nowhere")
    out, err = process.communicate(timeout=60)
    assert_fails(Outcome(process.returncode, out, err), "nowhere")


@pytest.mark.slow
def test_a_closed_pipe_ends_the_command_silently(start: Start, here: Path) -> None:
    (here / "long.txt").write_text("the bank of the river\n" * 3000)
    process = start("embed", "long.txt", "--model", "model", "--batch-size", "32")
    assert process.stdout
    assert process.stderr
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["embed", "corpus.txt", "--model", "model"]])
def test_a_full_disk_gives_one_line(start: Start, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        process = start(*arguments, stdout=full)
        _, err = process.communicate(timeout=60)
    assert_fails(Outcome(process.returncode, "", err), "stdout", "No space left on device")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_ctrl_c_says_how_to_resume(start: Start, here: Path) -> None:
    (here / "long.txt").write_text("the bank of the river\n" * 200_000)
    process = start("embed", "long.txt", "--model", "model", "--out", "v.npz", "--shard-tokens", "1000")
    deadline = time.monotonic() + 60
    while not (here / "v-00001.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert_fails(Outcome(process.returncode, out, err), "interrupted", "same command", code=130)
    assert not list(here.glob(".*.part"))


def test_the_start_imports_no_heavy_library() -> None:
    heavy = ["torch", "numpy", "h5py", "huggingface_hub", "matplotlib", "safetensors", "rich"]
    look = f"import sys; print([name for name in {heavy} if name in sys.modules])"
    for statement in (
        "import elmo",
        "import elmo.cli; assert elmo.cli.main(['--help']) == 0",
        "import elmo.cli; assert elmo.cli.main(['embed', '--help']) == 0",
        "import elmo.cli; assert elmo.cli.main(['nothing']) == 2",
    ):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = subprocess.run(
            [sys.executable, "-c", f"{statement}; {look}"], capture_output=True, text=True, check=True, env=environment
        )
        assert done.stdout.splitlines()[-1] == "[]"


def test_compare_imports_only_what_it_uses() -> None:
    unused = ["h5py", "huggingface_hub", "transformers", "matplotlib", "rich", "sklearn", "scipy", "simplemma", "jieba"]
    unused += ["torch._dynamo", "torch._inductor", "torch.onnx", "numpy.testing"]
    code = (
        "import sys, elmo.cli; assert elmo.cli.main(['compare', 'bank', 'a bank', 'the bank']) == 0;"
        f"print([name for name in {unused} if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "[]"


def test_main_reads_the_arguments_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["elmo", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("elmo ")

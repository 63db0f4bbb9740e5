"""One model in several threads and processes: conversions, forks, copies. Vectors have exactly the expected bits."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from pathlib import Path

import pytest
import torch

from elmo.embed.elmo import Elmo
from elmo.engine.compiled import VARIABLE
from elmo.engine.matmul import check_int8_support, check_packed_support
from elmo.formats.pretrained import Pretrained
from elmo.predict.scores import score_sentences
from tests.engine.cases import BUILT_VARIANTS, random_sentences
from tests.formats.tiny import tiny_model

SENTENCES = random_sentences(24, longest=12)
TEXT = [["the", "river", "bank"], ["the"] * 200, ["café", "bank"]]
KERNELS = [*BUILT_VARIANTS[:1], "0"]


def wide_model() -> Pretrained:
    return tiny_model("chars", cell_width=48, state_width=32, softmax=True)


def available_dtypes() -> list[str]:
    has_int8 = (check_packed_support() or check_int8_support()) is None
    return ["float32", "bfloat16", "float64", *(["int8"] if has_int8 else [])]


def encode(elmo: Elmo, *, batch_size: int | None = None) -> list[bytes]:
    encodings = elmo.encode(SENTENCES, layers="all", batch_size=batch_size, dtype="float32")
    return [encoding.vectors.tobytes() for encoding in encodings]


def run_while(change: Callable[[int], None], work: Callable[[], None], *, seconds: float = 1.0) -> list[BaseException]:
    """Call ``work`` in three threads while this one calls ``change``; return what they raised."""
    is_over, errors = threading.Event(), []

    def repeat() -> None:
        try:
            while not is_over.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    end, number = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < end and not errors:
            change(number)
            number += 1
    finally:
        is_over.set()
        for thread in threads:
            thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("kernels", KERNELS)
def test_a_call_has_one_precision_while_another_thread_converts_the_network(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, kernels)
    dtypes = available_dtypes()
    expected = {dtype: encode(Elmo(wide_model(), dtype=dtype)) for dtype in dtypes}
    elmo, results = Elmo(wide_model()), []
    errors = run_while(
        lambda k: elmo.to(dtype=dtypes[k % len(dtypes)]) and time.sleep(0.002),
        lambda: results.append(encode(elmo, batch_size=2)),
    )
    assert errors == []
    assert len(results) >= 3
    assert all(result in expected.values() for result in results)
    for dtype in dtypes:
        assert encode(elmo.to(dtype=dtype)) == expected[dtype]


@pytest.mark.slow
def test_scores_and_a_warm_state_have_one_precision_each() -> None:
    def score(model: Elmo) -> list[bytes]:
        scores = score_sentences(model, TEXT)
        return [part.tobytes() for one in scores for part in (one.forward, one.backward) if part is not None]

    def warm_up(model: Elmo) -> list[bytes]:
        warm = model.warm_up(TEXT * 40)
        return [warm.hidden.numpy().tobytes(), warm.cell.numpy().tobytes()]

    dtypes, compute = ["float32", "float64"], [score, warm_up]
    expected = [[run(Elmo(wide_model(), dtype=dtype)) for dtype in dtypes] for run in compute]
    elmo, results = Elmo(wide_model()), ([], [])
    errors = run_while(
        lambda k: elmo.to(dtype=dtypes[k % 2]) and time.sleep(0.005),
        lambda: [found.append(run(elmo)) for found, run in zip(results, compute, strict=True)] and None,
    )
    assert errors == []
    for found, allowed in zip(results, expected, strict=True):
        assert found
        assert all(result in allowed for result in found)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", KERNELS)
def test_other_calls_do_not_disturb_a_thread_that_encodes(
    kernels: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, kernels)
    elmo = Elmo(wide_model())
    expected, wrong = encode(elmo), []
    folders = (tmp_path / str(number) for number in count())
    calls: list[Callable[[], object]] = [
        elmo.clear_cache,
        lambda: torch.set_num_threads(2),
        lambda: elmo.save_pretrained(next(folders)),
        lambda: torch.set_num_threads(1),
        lambda: encode(elmo),
        elmo.snapshot,
        lambda: copy.deepcopy(elmo),
    ]
    try:
        errors = run_while(
            lambda k: calls[k % len(calls)]() and None,
            lambda: None if encode(elmo, batch_size=4) == expected else wrong.append(1),
        )
    finally:
        torch.set_num_threads(1)
    assert errors == []
    assert wrong == []
    assert encode(Elmo.from_pretrained(tmp_path / "0")) == expected


def test_a_higher_precision_restores_the_original_weights() -> None:
    elmo, expected = Elmo(tiny_model()), encode(Elmo(tiny_model()))
    original = {name: weight.clone() for name, weight in elmo.bilm.state_dict().items()}
    for dtype in ("bfloat16", "float16", "float64", "float16", "bfloat16"):
        elmo.to(dtype=dtype)
        assert elmo.precision == dtype
        copied = pickle.loads(pickle.dumps(elmo)).to(dtype="float32")
        assert encode(copied) == expected
        assert encode(copy.deepcopy(elmo).to(dtype="float32")) == expected
    elmo.to(dtype="float32")
    assert all(torch.equal(weight, original[name]) for name, weight in elmo.bilm.state_dict().items())
    assert encode(elmo) == expected


def test_the_restored_weights_are_those_of_the_model_without_a_copy() -> None:
    elmo = Elmo(tiny_model())
    addresses = [weight.data_ptr() for weight in elmo.bilm.parameters()]
    elmo.to(dtype="bfloat16").to(dtype="float64").to(dtype="float32")
    assert [weight.data_ptr() for weight in elmo.bilm.parameters()] == addresses


def test_weights_that_were_changed_are_not_restored() -> None:
    elmo = Elmo(tiny_model(), dtype="bfloat16")
    with torch.no_grad():
        elmo.bilm.forward_stack[0].bias += 1  # type: ignore[operator]
    changed = elmo.bilm.forward_stack[0].bias.float()  # type: ignore[union-attr]
    original = tiny_model().weights
    elmo.to(dtype="float32")
    assert torch.equal(elmo.bilm.forward_stack[0].bias, changed)  # type: ignore[arg-type]
    assert torch.equal(elmo.bilm.state_dict()["forward_stack.1.bias"], original["forward_stack.1.bias"])
    fresh = Elmo(tiny_model())
    fresh.bilm.load_state_dict(elmo.bilm.state_dict())
    assert encode(elmo) == encode(fresh)


def test_weights_trained_in_full_precision_are_restored_as_trained() -> None:
    elmo = Elmo(tiny_model())
    elmo.bilm.load_state_dict({name: weight * 0.9 for name, weight in elmo.bilm.state_dict().items()}, assign=True)
    expected = encode(elmo)
    assert encode(elmo.to(dtype="bfloat16")) != expected
    assert encode(elmo.to(dtype="float32")) == expected


def test_parameters_stay_the_same_objects_and_gradients_follow_them() -> None:
    elmo = Elmo(tiny_model())
    before = list(elmo.bilm.parameters())
    for weight in before:
        weight.requires_grad_(True).grad = torch.ones_like(weight)
    elmo.to(dtype="float64")
    assert all(x is y for x, y in zip(elmo.bilm.parameters(), before, strict=True))
    assert all(x.grad is not None and x.grad.dtype == torch.float64 for x in before)


def test_a_snapshot_does_not_follow_conversions() -> None:
    elmo = Elmo(tiny_model())
    expected = encode(elmo)
    snapshot = elmo.snapshot()
    assert snapshot._engine._prepared is elmo._engine._prepared  # nothing is packed again
    elmo.to(dtype="bfloat16")
    assert (snapshot.precision, elmo.precision) == ("float32", "bfloat16")
    assert encode(snapshot) == expected
    assert encode(elmo) != expected
    assert encode(elmo.snapshot().to(dtype="float32")) == expected


def test_a_predictor_follows_conversions_from_call_to_call() -> None:
    from elmo.predict.predictor import Predictor

    elmo = Elmo(wide_model())
    predictor = Predictor(elmo)
    assert predictor.freeze().words(["the"]).vectors.dtype == torch.float32
    elmo.to(dtype="float64")
    assert predictor.freeze().words(["the"]).vectors.dtype == torch.float64


@pytest.mark.slow
def test_tasks_of_asyncio_share_a_model_while_it_is_converted_and_copied() -> None:
    dtypes = ["float32", "float64"]
    expected = {dtype: encode(Elmo(wide_model(), dtype=dtype)) for dtype in dtypes}
    elmo = Elmo(wide_model())

    async def run() -> list[list[bytes]]:
        async def convert() -> None:
            for k in range(20):
                await asyncio.to_thread(elmo.to, dtype=dtypes[k % 2])
                copied = await asyncio.to_thread(lambda: pickle.loads(pickle.dumps(elmo)))
                assert copied.precision in dtypes

        async def work() -> list[list[bytes]]:
            return [await asyncio.to_thread(encode, elmo, batch_size=2) for _ in range(4)]

        results, *_ = await asyncio.wait_for(
            asyncio.gather(asyncio.gather(*(work() for _ in range(6))), convert()), timeout=120
        )
        return [result for several in results for result in several]

    results = asyncio.run(run())
    assert len(results) == 24
    assert all(result in expected.values() for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_model_is_passed_to_new_processes(method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    elmo = Elmo(wide_model())
    expected = encode(elmo)
    is_over = threading.Event()
    busy = threading.Thread(target=lambda: [encode(elmo) for _ in iter(is_over.is_set, True)], daemon=True)
    busy.start()
    try:
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            results = list(pool.map(encode, [elmo] * 2, timeout=200))
    finally:
        is_over.set()
        busy.join(20)
    assert results == [expected] * 2


@pytest.mark.slow
def test_the_long_run_counts_what_is_wrong_and_what_hangs(tmp_path: Path) -> None:
    """``benchmarks/concurrency.py``, at a small size; the full size is 100,000 sentences and 1,000 forks."""
    Elmo(wide_model()).save_pretrained(tmp_path / "model")
    root = Path(__file__).parents[2]
    sizes = ["--model", str(tmp_path / "model"), "--sentences", "200", "--forks", "2" if hasattr(os, "fork") else "0"]
    done = subprocess.run(
        [sys.executable, str(root / "benchmarks" / "concurrency.py"), *sizes],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sentences in 8 threads: 0 wrong, 0 threads hung" in done.stdout


_FORKS = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forks of a process with threads
import torch
from torch.utils.data import DataLoader
from elmo.embed.elmo import Elmo
from elmo.predict.scores import score_sentences
from tests.embed.test_concurrency import SENTENCES, encode, wide_model

torch.set_num_threads(2)
elmo = Elmo(wide_model(), dtype=sys.argv[1])
long = [["the", "bank"] * 300]  # enough numbers for OpenMP
score = lambda: [s.forward.tobytes() for s in score_sentences(elmo, [["the", "river", "bank"], ["café"]])]
run = lambda: (encode(elmo), elmo.encode(long)[0].vectors.tobytes(), score())
expected, is_over = run(), threading.Event()
elmo.encode(["a"] * 3)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(SENTENCES)

    def __getitem__(self, k):
        return elmo.encode([SENTENCES[k]], layers="all", dtype="float32")[0].vectors.tobytes()


def work(number):
    while not is_over.is_set():
        elmo.encode(SENTENCES + [[f"new{time.monotonic()}"]])
        score() if number == 2 else elmo.clear_cache() if number == 1 else None


threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(3)]
for thread in threads:
    thread.start()
n_failed = 0
for k in range(int(sys.argv[2])):
    time.sleep(0.003 * (k % 7))
    child = os.fork()
    if child == 0:
        try:
            os._exit(run() != expected)
        finally:
            os._exit(2)
    end = time.monotonic() + 20
    while not (status := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.002)
    if not status[0]:
        os.kill(child, 9)
        os.waitpid(child, 0)
    n_failed += status[0] == 0 or status[1] != 0
    if n_failed:
        break
rows = None
if not n_failed:
    loader = DataLoader(Rows(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=30)
    rows = list(loader) == expected[0]
is_over.set()
for thread in threads:
    thread.join(20)
print(n_failed, rows, any(thread.is_alive() for thread in threads), run() == expected, flush=True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(("kernels", "dtype"), [(KERNELS[0], "float32"), ("0", "bfloat16")])
def test_forks_of_a_busy_process_compute_the_same_bits(kernels: str, dtype: str) -> None:
    path = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, dtype, "8"],
        # threads that wait actively take time from others, on a machine that is busy
        env={**os.environ, "PYTHONPATH": path, VARIABLE: kernels, "OMP_WAIT_POLICY": "passive"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout == "0 True False True\n", done.stdout + done.stderr

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from elmo.errors import ConfigError
from elmo.train.distributed import Ranks, join_ranks, open_fresh_store
from elmo.train.loop import Trainer
from tests.train.test_loop import CONFIG, OPTIONS, make_corpus

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this build of torch has no distributed part")
SOON = timedelta(seconds=60)
WORLD = 3


def meet(store: dist.Store, late: dict[int, float]) -> list[dist.Store]:
    """All processes of one start, some of them later than others."""

    def come(rank: int) -> dist.Store:
        time.sleep(late.get(rank, 0))
        return open_fresh_store(store, rank=rank, world=WORLD, timeout=SOON)

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(come, range(WORLD)))


@pytest.mark.parametrize("late", [{}, {0: 0.1}, {1: 0.1}, {1: 0.05, 2: 0.1}], ids=str)
def test_those_of_one_start_meet_where_nobody_before_them_wrote(late: dict[int, float]) -> None:
    store = dist.HashStore()
    for start in ("one", "two", "three"):
        parts = meet(store, late)
        assert not any(part.check(["address"]) for part in parts)
        parts[0].set("address", start)
        assert {part.get("address") for part in parts} == {start.encode()}


def test_a_process_that_died_as_it_came_does_not_hold_up_the_next_start() -> None:
    store = dist.HashStore()
    for _ in range(2):
        with pytest.raises(TimeoutError, match="some processes did not start in time"):
            open_fresh_store(store, rank=1, world=WORLD, timeout=timedelta(seconds=0.05))
        with pytest.raises(TimeoutError):
            open_fresh_store(store, rank=0, world=WORLD, timeout=timedelta(seconds=0.05))
    first, second, third = meet(store, {1: 0.1})
    first.set("address", "new")
    assert second.get("address") == third.get("address") == b"new"


ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this build of torch has no gloo"
)
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")


def torchrun(*arguments: object, n_ranks: int = 2) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=600, env=environment, check=False
    )


# --- one process ------------------------------------------------------------------------------------------


def test_one_process_has_nothing_to_agree_on() -> None:
    with join_ranks({}) as ranks:
        assert ranks == Ranks()
        assert ranks.is_first
        tensor = torch.ones(3)
        ranks.add_up([tensor])
        assert tensor.tolist() == [1, 1, 1]
        assert ranks.concatenate(tensor, dim=0) is tensor
        assert ranks.from_first("mine") == "mine"
        ranks.check_equal({"options": 1})
        with ranks.first_one_first():
            pass


@pytest.mark.parametrize("batch_size", [1, 4, 10, 128])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_every_row_is_read_by_one_process_and_no_process_has_two_more_than_another(batch_size: int, world: int) -> None:
    parts = [range(batch_size)[Ranks(rank, world).rows(batch_size)] for rank in range(world)]
    assert [row for part in parts for row in part] == list(range(batch_size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_fewer_rows_than_processes_are_refused(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path)
    few = replace(OPTIONS, batch_size=3)
    with pytest.raises(
        ConfigError, match=r"batch_size must be at least 4 × 1 \(processes × accumulation steps\); found 3"
    ):
        Trainer(corpus, CONFIG, few, tmp_path / "run", ranks=Ranks(3, 4))
    assert not (tmp_path / "run").exists()


@needs_gloo
def test_a_process_group_that_was_made_before_is_used_and_left_as_it_is() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        # the group of the caller counts, not the variables of torchrun
        with join_ranks({"WORLD_SIZE": "4", "RANK": "2"}) as ranks:
            assert ranks == Ranks()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_process_without_a_gpu_of_its_own_is_refused() -> None:
    local_rank = str(torch.cuda.device_count())
    environment = {"WORLD_SIZE": "9", "RANK": "8", "LOCAL_RANK": local_rank}
    with (
        pytest.raises(ConfigError, match=rf"process {local_rank} of this machine has no GPU"),
        join_ranks(environment, device="cuda"),
    ):
        pass


# --- several ----------------------------------------------------------------------------------------------

TOGETHER = """
import sys, torch
from pathlib import Path
from elmo.errors import ElmoError
import torch.distributed as dist
from elmo.train.distributed import join_ranks

def refused(what):
    try:
        what()
    except ElmoError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
with join_ranks() as ranks:  # of the group that is there
    answer = ranks.from_first(f"{ranks.rank} of {ranks.world}")
dist.barrier()  # it is there still
dist.destroy_process_group()
with join_ranks() as ranks:
    said = open(folder / f"said.{ranks.rank}", "w")
    print(answer, file=said)
    sums = [torch.full((2, 2), 1.0 + ranks.rank), torch.tensor(10.0 * ranks.rank)]
    ranks.add_up(sums)
    print(sums[0].tolist(), float(sums[1]), file=said)
    rows = ranks.rows(5)
    whole = torch.arange(10.0).view(2, 5)
    print(torch.equal(ranks.concatenate(whole[:, rows], dim=1), whole), file=said)
    with ranks.first_one_first():
        print((folder / "made").exists(), file=said)
        (folder / "made").touch()
    ranks.check_equal({"options": {"seed": 1}, "corpus": "same"})
    print(refused(lambda: ranks.check_equal({"options": {"seed": ranks.rank}, "corpus": "same"})), file=said)
    print(refused(lambda: ranks.share_corpus(folder / f"elsewhere-{ranks.rank}", lambda: None)), file=said)
    if ranks.rank == 1:
        said.close()
        import os
        os._exit(0)
    print(refused(lambda: ranks.add_up([torch.zeros(3)])), file=said)
    said.close()
"""


@pytest.mark.slow
@needs_gloo
def test_two_processes_add_up_wait_for_each_other_and_notice_what_differs_or_dies(tmp_path: Path) -> None:
    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    torchrun(script, tmp_path)
    said = [(tmp_path / f"said.{rank}").read_text().splitlines() for rank in (0, 1)]
    assert [lines.pop(0) for lines in said] == ["0 of 2"] * 2
    first, second = said
    assert first[:2] == second[:2] == ["[[3.0, 3.0], [3.0, 3.0]] 10.0", "True"]
    assert (first[2], second[2]) == ("False", "True")  # the first came first
    assert first[3] == second[3]
    assert first[3].startswith("ConfigError: process 1 of 2 must have the same options as process 0;")
    assert first[4] == "nothing"
    assert second[4].startswith("DataError: process 1 of 2 cannot read the corpus of process 0: ")
    assert second[4].endswith("elsewhere-1 on a disk that all machines share")
    assert first[5].startswith("TrainingError: process 0 of 2 lost the connection to the other processes")


@pytest.mark.slow
@needs_gloo
@needs_proc
def test_two_processes_train_as_one_does_and_end_with_the_same_bytes_though_they_are_killed() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "distributed.py"), "--ranks", "2", "--steps", "30"]
    command += ["--softmax", "sampled", "--kills", "2", "--most", "1e-12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "no problems"
    assert lines[-3].startswith("2      2 ")
    assert lines[-3].endswith("weights, optimizer, state, log")


@pytest.mark.slow
@needs_gloo
def test_the_command_line_trains_in_two_processes_and_speaks_once(tmp_path: Path) -> None:
    lines = [f"the {a} dog sees a {b} cat ." for a in ("big", "old", "red") for b in ("big", "old", "red")]
    (tmp_path / "corpus.txt").write_text("\n".join(lines) + "\n")
    options = ["--preset", "tiny", "--epochs", "1", "--batch-size", "2", "--samples", "0"]
    done = torchrun("-m", "elmo", "train", tmp_path / "corpus.txt", "--out", tmp_path / "my-model", *options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my-model" / "model.safetensors").is_file()
    assert done.stderr.count("elmo: wrote ") == 1, done.stderr


# --- example files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.sh")), ids=lambda path: path.name)
def test_an_example_script_is_sound_bash(path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_kubernetes_example_names_one_service_job_and_volume() -> None:
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text(encoding="utf-8"))
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    template = job["spec"]["template"]["spec"]
    assert service["metadata"]["name"] == template["subdomain"]  # or pods cannot find each other by name
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["parallelism"] == job["spec"]["completions"]
    (container,) = template["containers"]
    assert f"--nnodes {job['spec']['completions']} " in container["args"][0]
    assert [mount["name"] for mount in container["volumeMounts"]] == [v["name"] for v in template["volumes"]]

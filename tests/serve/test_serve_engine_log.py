import errno
import io
import os
import threading
from pathlib import Path

import pytest
from waiting import PATIENCE_S, until

from decideploy.serve.engine_log import EngineLog

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def read(tmp_path: Path, text: str | bytes) -> EngineLog:
    log = EngineLog(tmp_path / "logs" / "engine.log")
    log.prepare()
    raw = text if isinstance(text, bytes) else text.encode()
    log.follow(io.BufferedReader(io.BytesIO(raw)))
    log.wait(PATIENCE_S)
    return log


@pytest.mark.parametrize(
    "line",
    [
        f"(EngineCore pid=7) ERROR 12-31 23:59:59 [core.py:1] {OUT_OF_MEMORY}",
        f"ERROR 12-31 23:59:59 [core.py:1] {OUT_OF_MEMORY}",
        f"CRITICAL 12-31 23:59:59 {OUT_OF_MEMORY}",
        f"(Worker pid=7) {OUT_OF_MEMORY}",
        f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n{OUT_OF_MEMORY}',
    ],
)
def test_error_lines_tell_the_cause(tmp_path: Path, line: str) -> None:
    assert "nvidia-smi" in read(tmp_path, f"INFO 12-31 loading\n{line}\n").cause


@pytest.mark.parametrize(
    "line",
    [
        "INFO 12-31 23:59:59 [a.py:1] to avoid CUDA out of memory, chunks are used",
        "(EngineCore pid=7) WARNING 12-31 23:59:59 [a.py:1] No module named 'triton'",
        "INFO 12-31 one message\nover two lines, with No space left on device",
    ],
)
def test_other_lines_tell_no_cause(tmp_path: Path, line: str) -> None:
    log = read(tmp_path, f"{line}\n")
    assert (log.cause, log.first_error) == ("", ())


def test_latest_cause_wins(tmp_path: Path) -> None:
    log = read(tmp_path, f"ERROR 12-31 No module named 'humming'\nINFO 12-31 goes on\n{OUT_OF_MEMORY}\n")
    assert "nvidia-smi" in log.cause


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/usr/bin/python3: No module named vllm", "vLLM is not installed"),
        (
            "python: Error while finding module for 'vllm.x' (ModuleNotFoundError: No module named 'vllm')",
            "vLLM is",
        ),
        ("ModuleNotFoundError: No module named 'vllm'", "vLLM is not installed"),
        ("ModuleNotFoundError: No module named 'vllm_flash_attn'", "a dependency"),
        ("ModuleNotFoundError: No module named 'vllm.third_party.pynvml'", "a dependency"),
        ("vllm serve: error: unrecognized arguments: --new", "not release 0.30"),
    ],
)
def test_cause_of_a_line_without_a_level(tmp_path: Path, line: str, told: str) -> None:
    assert told in read(tmp_path, f"{line}\n").cause


def test_noise_of_every_exit_is_not_shown(tmp_path: Path) -> None:
    log = read(tmp_path, "INFO end\nnanobind: leaked 2 instances!\n - leaked type X\n")
    assert log.tail() == ("INFO end",)
    assert "nanobind" in log.path.read_text()


def test_first_error_is_kept_while_the_tail_moves_on(tmp_path: Path) -> None:
    after = "".join(f"ERROR 12-31 consequence {number}\n" for number in range(60))
    log = read(tmp_path, f"ERROR 12-31 root\nERROR 12-31 cause\nINFO 12-31 between\n{after}")
    assert log.first_error == ("ERROR 12-31 root", "ERROR 12-31 cause")
    assert "ERROR 12-31 root" not in log.tail()


def test_long_line_comes_in_pieces_and_whole_in_the_file(tmp_path: Path) -> None:
    log = read(tmp_path, b"x" * 20_000 + b"\nnext")
    assert [len(line) for line in log.tail()] == [8192, 8192, 20_000 - 2 * 8192, 4]
    assert log.path.read_bytes() == b"x" * 20_000 + b"\nnext"


def test_progress_bar_is_shown_as_it_ended(tmp_path: Path) -> None:
    assert read(tmp_path, "load 1%\rload 50%\rload 100%\nINFO end\n").tail() == ("load 100%", "INFO end")


def test_a_start_tells_its_figures(tmp_path: Path) -> None:
    told = read(
        tmp_path,
        "(Worker pid=7) INFO 11-30 18:00:00 [runner.py:5] Model loading took 19.94 GiB memory and "
        "6.123456 seconds\n"
        "INFO [gpu_worker.py:825] CUDA graph pool memory: 0.5 GiB (actual), 0.48 GiB (estimated)\n"
        "INFO [core.py:362] init engine (profile, create kv cache, warmup model) took 85.20 s "
        "(compilation: 43.10 s)\n",
    ).facts
    gib = 1024**3
    assert told.weights_bytes == round(19.94 * gib)
    assert told.graph_bytes == gib // 2
    assert told.init_s == 85.2


def test_hostile_facts_are_not_read(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        f"Using {'a ' * 4000}MoE backend\nKV cache size: , tokens\nAvailable KV cache memory: ... GiB\n",
    )
    facts = log.facts
    assert (facts.moe_backend, facts.kv_cache_tokens, facts.kv_cache_bytes) == (None, None, None)


def test_output_is_in_the_file_before_its_line_ends(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "engine.log")
    log.prepare()
    read_end, write_end = os.pipe()
    log.follow(os.fdopen(read_end, "rb"))
    os.write(write_end, b"loading ...")
    until(lambda: log.path.read_bytes() == b"loading ...", told=log.path.read_bytes)
    os.close(write_end)
    log.wait(PATIENCE_S)
    assert log.tail() == ("loading ...",)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_full_disk_is_noted_once_and_the_engine_drained(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "engine.log")
    log.path.symlink_to("/dev/full")
    read_end, write_end = os.pipe()
    log.follow(os.fdopen(read_end, "rb"))
    writer = threading.Thread(target=lambda: [os.write(write_end, b"y" * 99 + b"\n") for _ in range(5000)])
    writer.start()
    writer.join(PATIENCE_S)
    assert not writer.is_alive()
    os.write(write_end, b"ERROR 12-31 MemoryError\n")
    os.close(write_end)
    log.wait(PATIENCE_S)
    assert log.tail()[-1] == "ERROR 12-31 MemoryError"
    assert "free memory" in log.cause


def test_note_of_a_full_disk_names_it(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "engine.log")
    log.path.symlink_to("/dev/full")
    log.follow(io.BufferedReader(io.BytesIO(b"one\ntwo\n")))
    log.wait(PATIENCE_S)
    assert log.tail()[1:] == ("one", "two")
    assert os.strerror(errno.ENOSPC) in log.tail()[0]


def test_log_of_the_start_before_is_kept(tmp_path: Path) -> None:
    read(tmp_path, "first\n")
    read(tmp_path, "second\n")
    assert (tmp_path / "logs" / "engine.previous.log").read_text() == "first\n"
    assert (tmp_path / "logs" / "engine.log").read_text() == "second\n"

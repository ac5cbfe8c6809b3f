"""Options that several verbs share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from decideploy.cli.values import (
    count,
    port,
    positive,
    prompt_lengths,
    replicas,
    seconds,
    server_url,
    share,
    size,
)
from decideploy.hardware.kernels import backends

CONCURRENCY: Final = 8


def model_options(sub: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Which model."""
    sub.add_argument("model", nargs="?" if optional else None, metavar="MODEL", help="a folder or a hub id")
    sub.add_argument("--adapter", type=Path, help="the adapter's folder (default: MODEL/adapter_vllm)")
    sub.add_argument("--revision", help="the commit of a hub id, 40 hexadecimal digits")


def workload_options(sub: argparse.ArgumentParser) -> None:
    """What the plan is made for."""
    sub.add_argument(
        "--max-model-len",
        type=positive,
        metavar="TOKENS",
        help="longest prompt and answer (default: the longest that fits)",
    )
    sub.add_argument(
        "--max-num-seqs", type=positive, metavar="N", help="most requests in one step (default: by clients)"
    )
    _workload_group(sub)
    _engine_group(sub)
    sub.add_argument(
        "--max-images",
        type=count,
        default=4,
        metavar="N",
        help="most images of one request, 0 for text only (default: 4; on CPU always text only)",
    )
    sub.add_argument(
        "--allow-image-host",
        action="append",
        default=[],
        metavar="HOST",
        help="fetch https images from HOST too; can be given repeatedly (default: data: URLs only)",
    )


def _workload_group(sub: argparse.ArgumentParser) -> None:
    group = sub.add_argument_group("workload", "what is asked of the server; see docs/hardware.md")
    group.add_argument("--clients", type=positive, metavar="N", help="how many ask at once (default: 64)")
    group.add_argument(
        "--prompt-tokens",
        type=prompt_lengths,
        metavar="MEDIAN,LONGEST",
        help="lengths of prompts without images; all must fit, CUDA graphs cover them (default: 256,1024)",
    )
    group.add_argument(
        "--thinking-share",
        type=share,
        metavar="SHARE",
        help="part of the decisions for which System 2 thinks (default: 0)",
    )
    group.add_argument(
        "--think-tokens",
        type=positive,
        metavar="N",
        help="most tokens of a thought, with a --thinking-share (default: 4096)",
    )
    group.add_argument("--goal", choices=["latency", "throughput"], help="what to favour (default: latency)")


def _engine_group(sub: argparse.ArgumentParser) -> None:
    group = sub.add_argument_group("engine", "choices that the plan makes otherwise")
    group.add_argument("--max-num-batched-tokens", type=positive, metavar="N", help="tokens of one step")
    group.add_argument(
        "--moe-backend", choices=sorted(backends()), help="expert kernel (default: by the card)"
    )
    group.add_argument(
        "--tensor-parallel-size", type=positive, metavar="N", help="GPUs of one engine (default: 1)"
    )
    group.add_argument("--kv-cache-dtype", choices=["auto", "fp8"], help="stored keys and values")
    group.add_argument(
        "--kv-cache-memory-bytes", type=size, metavar="N", help="the KV cache's size, in place of a share"
    )
    group.add_argument(
        "--gpu-memory-utilization", type=share, metavar="SHARE", help="share of the card (default: 0.92)"
    )
    group.add_argument("--draft-model", type=Path, metavar="DIR", help="draft for System 2, a folder")
    group.add_argument(
        "--calibrate", action="store_true", help="plan with what earlier starts on this card measured"
    )


def serve_options(sub: argparse.ArgumentParser) -> None:
    """What ``serve`` does, and what is installed to run it."""
    model_options(sub, optional=True)
    sub.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    sub.add_argument("--port", type=port, default=8000, help="port to listen on (default: 8000)")
    workload_options(sub)
    sub.add_argument(
        "--no-smoke-test",
        action="store_true",
        help="do not try the expert kernel by numbers before the load (docs/probe.md)",
    )
    sub.add_argument(
        "--strict-kernel",
        action="store_true",
        help="end the start when the engine takes another expert kernel than the planned one",
    )
    sub.add_argument(
        "--golden",
        type=Path,
        metavar="FILE",
        help="recorded decisions that the server must repeat (default: MODEL/golden.json, if there)",
    )
    sub.add_argument(
        "--startup-timeout",
        type=float,
        default=1200,
        metavar="S",
        help="seconds until the engine must answer",
    )
    sub.add_argument(
        "--replicas",
        type=replicas,
        metavar="N",
        help="serve by N engines behind HAProxy, auto: one a GPU (docs/replicas.md; default: one without)",
    )
    _operation_group(sub)


def _operation_group(sub: argparse.ArgumentParser) -> None:
    group = sub.add_argument_group("operation", "see docs/operate.md; DECIDEPLOY_API_KEYS gives keys as well")
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="one API key a line")
    group.add_argument(
        "--max-concurrency", type=positive, metavar="N", help="most requests at once (default: 256)"
    )
    group.add_argument(
        "--max-queue", type=count, metavar="N", help="most that wait; more are answered 429 (default: 256)"
    )
    group.add_argument(
        "--request-timeout", type=seconds, metavar="S", help="most seconds of a request (default: 300)"
    )
    group.add_argument(
        "--max-body-bytes", type=positive, metavar="N", help="largest body of a request (default: 33554432)"
    )
    group.add_argument(
        "--drain-timeout",
        type=count,
        metavar="S",
        help="seconds that requests in flight may take after SIGTERM (default: 30)",
    )
    group.add_argument(
        "--access-log", type=Path, metavar="FILE", help="where to log requests (default: standard error)"
    )
    group.add_argument(
        "--restart",
        choices=["never", "on-failure"],
        help="whether an engine that dies is started again (default: never; with --replicas on-failure)",
    )
    group.add_argument(
        "--max-restarts", type=count, default=3, metavar="N", help="how often in a row (default: 3)"
    )


def url_option(sub: argparse.ArgumentParser) -> None:
    """Which server."""
    sub.add_argument(
        "--url", type=server_url, default="http://127.0.0.1:8000", help="the server (default: %(default)s)"
    )


def server_options(sub: argparse.ArgumentParser) -> None:
    """Which server, with which key, and how long to wait."""
    url_option(sub)
    sub.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with the API key (default: the environment's DECIDEPLOY_API_KEY)",
    )
    sub.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="S", help="seconds to wait for an answer"
    )


def concurrency_option(sub: argparse.ArgumentParser) -> None:
    """How many questions at once."""
    sub.add_argument(
        "--concurrency", type=positive, metavar="N", help=f"most questions at once (default: {CONCURRENCY})"
    )

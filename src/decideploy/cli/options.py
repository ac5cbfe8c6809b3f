"""Options that several verbs share."""

from __future__ import annotations

import argparse
from pathlib import Path

from decideploy.cli.values import image_count, positive, seconds


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
        "--max-num-seqs", type=positive, metavar="N", help="most requests in one step (default: 64)"
    )
    sub.add_argument(
        "--max-images",
        type=image_count,
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


def url_option(sub: argparse.ArgumentParser) -> None:
    """Which server."""
    sub.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")


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
        "--concurrency", type=positive, default=8, metavar="N", help="most questions at once (default: 8)"
    )

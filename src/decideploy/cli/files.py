"""Verbs about a model's files: verify, lock-model, demo-model, convert-adapter."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from decideploy.cli.options import model_options
from decideploy.cli.output import AddVerb, print_json
from decideploy.counted import counted
from decideploy.errors import VerificationError

# Written out here: importing decideploy.artifacts takes longer than parsing the arguments.
FORMATS = ("table", "json", "sarif", "github")


def add_verbs(verb: AddVerb) -> None:
    """Add the verbs of this module."""
    sub = verb("verify", _verify, "Check a model's files before any engine sees them")
    model_options(sub)
    sub.add_argument("--deep", action="store_true", help="also read the tensors' values")
    sub.add_argument("--format", choices=FORMATS, default="table", help="how to report (default: table)")
    sub.add_argument("--manifest", type=Path, metavar="FILE", help="also compare every file with a manifest")
    sub.add_argument("--verify-key", type=Path, metavar="PEM", help="public key of the manifest's signature")

    sub = verb("lock-model", _lock_model, "Record the size and sha256 of every file of a model")
    sub.add_argument("model", metavar="MODEL", help="a folder, or OWNER/NAME@COMMIT")
    sub.add_argument("--revision", help="the commit of a hub id, 40 hexadecimal digits")
    sub.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: NAME.manifest.json)")
    sub.add_argument("--sign-key", type=Path, metavar="PEM", help="private key to sign the manifest with")

    sub = verb("demo-model", _demo_model, "Write the small model that decides about tickets and the like")
    sub.add_argument("dir", type=Path, metavar="DIR", help="folder to write")
    sub.add_argument("--random", action="store_true", help="random weights: as many files, and no sense")
    sub.add_argument("--nvfp4", action="store_true", help="write the experts in ModelOpt's NVFP4 layout")

    sub = verb("convert-adapter", _convert_adapter, "Make adapter_vllm/ from adapter/ and head.safetensors")
    sub.add_argument("model", type=Path, metavar="MODEL", help="the model's folder")
    sub.add_argument("--out", type=Path, help="folder to write (default: MODEL/adapter_vllm)")


def _verify(options: argparse.Namespace, console: Console) -> int:
    from decideploy.artifacts import verify_named, write_report

    verification = verify_named(
        options.model,
        revision=options.revision,
        adapter=options.adapter,
        deep=options.deep,
        manifest=options.manifest,
        verify_key=options.verify_key,
    )
    write_report(verification, "json" if options.json else options.format, console)
    return VerificationError.exit_code if verification.errors else 0


def _lock_model(options: argparse.Namespace, console: Console) -> int:
    from decideploy.artifacts import lock_named

    path, manifest = lock_named(
        options.model, revision=options.revision, out=options.out, sign_key=options.sign_key
    )
    if options.json:
        print_json(manifest.model_dump())
    else:
        size_bytes = sum(file.size_bytes for file in manifest.files.values())
        console.print(
            f"{counted(len(manifest.files), 'file')}, {size_bytes:,} bytes, in {path}", soft_wrap=True
        )
    return 0


def _demo_model(options: argparse.Namespace, console: Console) -> int:
    from decideploy.demo import write_demo_model

    write_demo_model(options.dir, nvfp4=options.nvfp4, trained_weights=not options.random)
    console.print(f"demo model in {options.dir}", soft_wrap=True)
    return 0


def _convert_adapter(options: argparse.Namespace, console: Console) -> int:
    from decideploy.artifacts import convert_adapter

    result = convert_adapter(options.model, options.out or options.model / "adapter_vllm")
    if options.json:
        print_json(result.to_dict())
    else:
        console.print(f"adapter in {result.path}", soft_wrap=True)
    return 0

"""Verbs about what is built and who vouches for it: build, bundle, attest, verify-build."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from decideploy.cli.output import AddVerb, print_json
from decideploy.cli.values import size
from decideploy.counted import counted


def add_verbs(verb: AddVerb) -> None:
    """Add the verbs of this module."""
    sub = verb("build", _build, "Build the patched vLLM wheel that a lock names")
    _recipe_options(sub)
    sub.add_argument("--out", type=Path, default=Path("dist"), help="folder for the wheel (default: dist)")

    sub = verb("bundle", _bundle, "Write all that a host without a network needs, with its installer")
    _recipe_options(sub)
    sub.add_argument("--python", default="3.12", metavar="X.Y", help="the host's Python (default: 3.12)")
    sub.add_argument("--model", metavar="MODEL", help="a model to put in: a folder, or OWNER/NAME@COMMIT")
    sub.add_argument(
        "--split",
        type=size,
        default=0,
        metavar="SIZE",
        help="size of a part, such as 60M (default: one part)",
    )
    sub.add_argument(
        "--lean", action="store_true", help="leave out compiled parts that this model never calls"
    )
    sub.add_argument(
        "--existing-torch",
        action="store_true",
        help="leave out torch and what comes with it: the host has it",
    )
    sub.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave this locked package out; can be given more than once",
    )
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the bundle")

    sub = verb("attest", _attest, "Sign an artifact, its provenance and bill of materials with a local key")
    sub.add_argument("artifact", type=Path, metavar="ARTIFACT", help="a built wheel, or a bundle's folder")
    sub.add_argument("--key", type=Path, required=True, metavar="PEM", help="elliptic-curve private key")

    sub = verb(
        "verify-build",
        _verify_build,
        "Check an artifact against signature, provenance, bill of materials and lock",
    )
    sub.add_argument("artifact", type=Path, metavar="ARTIFACT", help="a built wheel, or a bundle's folder")
    sub.add_argument("--key", type=Path, metavar="PEM", help="public key of the one who attested it")
    sub.add_argument("--rebuild", action="store_true", help="build it again and compare the bytes")
    _wheelhouse_option(sub)


def _recipe_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--recipe", choices=["cpu", "cuda"], required=True, help="which recipe to build")
    _wheelhouse_option(sub)


def _wheelhouse_option(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--wheelhouse",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder that is searched for wheels first; can be given more than once",
    )


def _build(options: argparse.Namespace, console: Console) -> int:
    from decideploy.build import build

    result = build(options.recipe, options.out, wheelhouses=options.wheelhouse)
    if options.json:
        print_json(result.to_dict())
        return 0
    console.print(f"wheel       {result.wheel}", soft_wrap=True)
    console.print(f"sha256      {result.sha256}")
    console.print(f"provenance  {result.provenance}", soft_wrap=True)
    console.print(f"sbom        {result.sbom}", soft_wrap=True)
    for patch in result.patches:
        console.print(f"patch       {patch.name}  {patch.sha256[:16]}")
    console.print(f"took        {result.seconds:.1f} s")
    return 0


def _bundle(options: argparse.Namespace, console: Console) -> int:
    from decideploy.bundle import BundleOptions, bundle

    result = bundle(
        BundleOptions(
            recipe=options.recipe,
            python=options.python,
            model=options.model,
            part_bytes=options.split,
            lean=options.lean,
            host_torch=options.existing_torch,
            without=tuple(options.without),
        ),
        options.out,
        wheelhouses=options.wheelhouse,
    )
    if options.json:
        print_json(result.to_dict())
        return 0
    parts = result.manifest.parts
    size_bytes = sum(part.size_bytes for part in parts)
    files = counted(len(result.manifest.files), "file")
    console.print(f"bundle      {result.folder}", soft_wrap=True)
    console.print(f"sha256      {result.sha256} (of manifest.json, which names all the rest)")
    console.print(f"holds       {files} in {counted(len(parts), 'part')}, {size_bytes:,} bytes")
    console.print(f"provenance  {result.provenance}", soft_wrap=True)
    console.print(f"sbom        {result.sbom}", soft_wrap=True)
    console.print(f"install     {result.folder / 'install.sh'} --prefix DIR", soft_wrap=True)
    return 0


def _attest(options: argparse.Namespace, console: Console) -> int:
    from decideploy.attest import attest

    signature = attest(options.artifact, options.key)
    if options.json:
        print_json({"schema_version": 1, "signature": str(signature)})
    else:
        console.print(f"signature   {signature}", soft_wrap=True)
    return 0


def _verify_build(options: argparse.Namespace, console: Console) -> int:
    from decideploy.attest import verify_build

    found = verify_build(
        options.artifact, public_key=options.key, again=options.rebuild, wheelhouses=options.wheelhouse
    )
    if options.json:
        print_json(found.to_dict())
        return 0
    console.print(f"artifact    {found.artifact}", soft_wrap=True)
    console.print(f"sha256      {found.sha256}")
    console.print(f"checked     {', '.join(found.checked)}", soft_wrap=True)
    if options.key is None:
        console.print("signature   not checked: no --key was given")
    return 0

"""The verb that lets one machine run ``serve`` for good: install."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console

from decideploy.cli.options import serve_options
from decideploy.cli.output import AddVerb, print_json
from decideploy.errors import Error, raise_together

if TYPE_CHECKING:
    from decideploy.deploy.units import Kind, Service, UnitFile

# What serve reads of this machine, by the place that a container gives it.
_PLACES: Final = {"model": "/model", "adapter": "/adapter", "golden": "/golden.json", "draft_model": "/draft"}


def add_verbs(verb: AddVerb) -> None:
    """Add the verb of this module."""
    sub = verb("install", _install, "Write the files that run serve on this machine for good")
    kind = sub.add_mutually_exclusive_group(required=True)
    for name, text in (
        ("systemd", "a hardened unit"),
        ("quadlet", "Podman's files for a container"),
        ("compose", "a Compose file for a container"),
    ):
        kind.add_argument(f"--{name}", dest="kind", action="store_const", const=name, help=text)
    sub.add_argument("--user", action="store_true", help="for this user's service manager, without root")
    sub.add_argument(
        "--recipe",
        choices=["cpu", "cuda"],
        help="which build will run; only cuda gets GPUs (default: what is here)",
    )
    sub.add_argument("--image", help="the container's image (default: decideploy:RECIPE)")
    sub.add_argument(
        "--hub-token-file", type=Path, metavar="FILE", help="token for a MODEL that is gated on the hub"
    )
    place = sub.add_mutually_exclusive_group()
    place.add_argument("--out", type=Path, metavar="DIR", help="write every file into this folder")
    place.add_argument("--root", type=Path, metavar="DIR", help="write as if this folder were /")
    sub.add_argument("--dry-run", action="store_true", help="print the files, write nothing")
    serve_options(sub)
    # A service that is to stay starts again by default.
    sub.set_defaults(restart="on-failure")


def serve_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """Where ``options`` differ from serve's defaults, as serve's arguments; not its address and key file."""
    parser = argparse.ArgumentParser(add_help=False)
    serve_options(parser)
    defaults = vars(parser.parse_args([]))
    model = () if options.model is None else (options.model,)
    flags = (
        flag
        for name, default in defaults.items()
        if name not in ("model", "host", "port", "api_key_file") and getattr(options, name) != default
        for flag in _flag(name, getattr(options, name))
    )
    return (*model, *flags)


def _flag(name: str, value: Any) -> Iterator[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        yield flag
    elif isinstance(value, list):
        yield from (f"{flag}={one}" for one in value)
    elif isinstance(value, tuple):
        yield f"{flag}={','.join(map(str, value))}"
    else:
        yield f"{flag}={value}"


def _install(options: argparse.Namespace, console: Console) -> int:
    from decideploy.deploy.units import hidden_faults, service_faults, write_files

    faults: list[Error] = []
    service = _service(options, _recipe(options, faults))
    faults += service_faults(service, model=options.model, revision=options.revision)
    hidden = tuple(hidden_faults(service))
    # Files for review may be meant for another machine, where these paths are right.
    raise_together([*faults, *(() if options.out else hidden)])
    proper = _files(service, options)
    files = _placed(proper, options)
    if options.dry_run:
        _print_files(files, options, console)
        return 0
    written = write_files(files)
    commands = (*_copies(proper, files, options), *_next_commands(service, files, options))
    if options.json:
        told = [{"path": str(file.path), "outcome": file.outcome} for file in written]
        warnings = [str(fault) for fault in hidden]
        print_json({"schema_version": 1, "files": told, "warnings": warnings, "next": list(commands)})
        return 0
    for fault in hidden:
        console.print(str(fault), style="yellow", markup=False, highlight=False, soft_wrap=True)
    for file in written:
        console.print(f"{file.outcome:<10}{file.path}", markup=False, highlight=False, soft_wrap=True)
    if not service.api_key_file:
        console.print("no --api-key-file: whoever reaches the port may ask", style="yellow")
    if commands:
        console.print("next:")
    for command in commands:
        console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _recipe(options: argparse.Namespace, faults: list[Error]) -> Literal["cpu", "cuda"]:
    """As asked; else of the build that is installed, or for an image by whether a GPU is here."""
    if options.recipe:
        return "cuda" if options.recipe == "cuda" else "cpu"
    if options.kind == "systemd":
        from decideploy.build import check_installed

        try:
            return "cuda" if check_installed().recipe == "cuda" else "cpu"
        except Error as error:
            faults.append(error)
            return "cpu"
    from decideploy.hardware import probe

    return "cuda" if probe().platform == "cuda" else "cpu"


def _service(options: argparse.Namespace, recipe: Literal["cpu", "cuda"]) -> Service:
    from decideploy.deploy.units import Service
    from decideploy.plan import Workload

    kind: Kind = options.kind
    paths = {name: path for name in _PLACES if (path := _local(options, name)) is not None}
    shown = paths if kind == "systemd" else {name: Path(_PLACES[name]) for name in paths}
    asked = argparse.Namespace(**{**vars(options), **{name: str(path) for name, path in shown.items()}})
    drain_s = Workload().shutdown_timeout_s if options.drain_timeout is None else options.drain_timeout
    return Service(
        kind=kind,
        recipe=recipe,
        arguments=serve_arguments(asked),
        host=options.host,
        port=options.port,
        drain_s=drain_s,
        startup_timeout_s=options.startup_timeout,
        restart=options.restart,
        max_restarts=options.max_restarts,
        fetches=options.model is not None and "model" not in paths,
        api_key_file=_absolute(options.api_key_file),
        hub_token_file=_absolute(options.hub_token_file),
        access_log=_absolute(options.access_log),
        mounts={_PLACES[name]: path for name, path in paths.items()},
        image=_image(options, recipe),
        gpu_count=options.tensor_parallel_size or 1,
        user=options.user,
        replicas=options.replicas is not None,
    )


def _local(options: argparse.Namespace, name: str) -> Path | None:
    """The absolute path of an option; None for a model of the hub, which is no folder here."""
    value = getattr(options, name)
    if value is None:
        return None
    path = Path(value).expanduser()
    is_hub_id = name == "model" and not path.is_dir() and not path.is_absolute()
    return None if is_hub_id else path.absolute()


def _absolute(path: Path | None) -> Path | None:
    return path.expanduser().absolute() if path else None


def _image(options: argparse.Namespace, recipe: str) -> str:
    if options.image or options.kind == "systemd":
        return options.image or ""
    return f"localhost/decideploy:{recipe}" if options.kind == "quadlet" else f"decideploy:{recipe}"


def _files(service: Service, options: argparse.Namespace) -> tuple[UnitFile, ...]:
    from decideploy.deploy.units import compose_files, quadlet_files, systemd_files
    from decideploy.pins import home_folder

    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config").absolute()
    if service.kind == "systemd":
        return systemd_files(service, config=config, state=home_folder())
    if service.kind == "quadlet":
        return quadlet_files(service, config=config if service.user else Path("/etc"))
    return compose_files(service, folder=(options.root or Path()).absolute())


def _placed(files: tuple[UnitFile, ...], options: argparse.Namespace) -> tuple[UnitFile, ...]:
    if options.out:
        return tuple(replace(file, path=options.out.absolute() / file.path.name) for file in files)
    if options.root and options.kind != "compose":
        root = options.root.absolute()
        return tuple(replace(file, path=root / file.path.relative_to("/")) for file in files)
    return files


def _print_files(files: tuple[UnitFile, ...], options: argparse.Namespace, console: Console) -> None:
    if options.json:
        told = [{"path": str(file.path), "outcome": "dry-run", "text": file.text} for file in files]
        print_json({"schema_version": 1, "files": told, "next": []})
        return
    for file in files:
        console.print(f"# {file.path}\n{file.text}", markup=False, highlight=False, soft_wrap=True)


def _copies(
    proper: tuple[UnitFile, ...], files: tuple[UnitFile, ...], options: argparse.Namespace
) -> tuple[str, ...]:
    """What brings files that were written for review to their places."""
    if not options.out or options.kind == "compose":
        return ()
    pairs = zip(files, proper, strict=True)
    return tuple(
        shlex.join(("install", "-D", "-m", f"{file.mode:o}", str(file.path), str(place.path)))
        for file, place in pairs
    )


def _next_commands(
    service: Service, files: tuple[UnitFile, ...], options: argparse.Namespace
) -> tuple[str, ...]:
    from decideploy.deploy.units import NAME, secret_name

    user = " --user" if service.user else ""
    if service.kind == "compose":
        return (f"docker compose -f {shlex.quote(str(files[0].path))} up --detach --wait",)
    if options.root:
        return _commands_for_root(service, options.root.absolute())
    reload = f"systemctl{user} daemon-reload"
    if service.kind == "quadlet":
        secrets = {"api-keys": service.api_key_file, "hub-token": service.hub_token_file}
        made = tuple(
            f"podman secret create {secret_name(name)} {shlex.quote(str(file))}"
            for name, file in secrets.items()
            if file
        )
        return (*made, reload, f"systemctl{user} start {NAME}.service")
    account = () if service.user else (f"systemd-sysusers {NAME}-user.conf",)
    return (
        *account,
        f"systemd-tmpfiles{user} --create {NAME}.conf",
        f"{reload} && systemctl{user} enable --now {NAME}.service",
        *(("loginctl enable-linger",) if service.user else ()),
    )


def _commands_for_root(service: Service, root: Path) -> tuple[str, ...]:
    """What prepares a system that is not running; nothing of it is started."""
    from decideploy.deploy.units import NAME

    below = shlex.quote(f"--root={root}")
    if service.kind == "quadlet":
        # Podman makes the unit of the files when that system boots.
        return ()
    if service.user:
        # Made for whoever logs in there.
        return (f"systemctl {below} --global enable {NAME}.service",)
    return (
        f"systemd-sysusers {below} {NAME}-user.conf",
        f"systemd-tmpfiles {below} --create {NAME}.conf",
        f"systemctl {below} enable {NAME}.service",
    )

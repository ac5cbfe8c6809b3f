"""The files that ``install`` writes, read by the programs that will read them."""

import configparser
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from decideploy.cli import main
from decideploy.cli.machine import serve_arguments
from decideploy.cli.parser import make_parser
from decideploy.deploy.modal.config import SERVE_STOP_S
from decideploy.deploy.stopping import serve_stop_s
from decideploy.deploy.units import (
    Service,
    UnitFile,
    compose_files,
    hidden_faults,
    quadlet_files,
    service_faults,
    systemd_files,
    write_files,
)
from decideploy.deploy.units import install as units_install
from decideploy.deploy.units.words import assignment, word
from decideploy.errors import ConfigError
from decideploy.gateway.settings import ServerSettings

HERE = Path(__file__).parent
CONTAINERFILE = HERE.parents[1] / "build" / "Containerfile"
WORST = "/srv/a b%n$HOME\"\\'"
SERVICE = Service(
    kind="systemd",
    recipe="cuda",
    arguments=(WORST, "--drain-timeout=45"),
    host="127.0.0.1",
    port=8000,
    drain_s=45,
    startup_timeout_s=1200,
    restart="on-failure",
    max_restarts=3,
    api_key_file=Path("/etc/decideploy/api-keys"),
    mounts={"/model": Path("/srv/model")},
    image="localhost/decideploy:cuda",
)


def systemd(**changes: object) -> dict[str, str]:
    files = systemd_files(replace(SERVICE, **changes), config=Path("/c"), state=Path("/s t"))
    return {file.path.name: file.text for file in files}


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not installed (Debian: systemd)"
    return found


def keys(text: str, section: str) -> dict[str, list[str]]:
    """Every value of every key of a section: unit files repeat keys, which configparser would not keep."""
    lines = text.partition(f"[{section}]\n")[2].partition("\n[")[0].splitlines()
    found: dict[str, list[str]] = {}
    for line in filter(None, lines):
        key, _, value = line.partition("=")
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("user", [False, True])
@pytest.mark.parametrize("recipe", ["cpu", "cuda"])
@pytest.mark.parametrize("more", [{}, {"fetches": True}, {"replicas": True}])
def test_systemd_finds_nothing_to_say(
    user: bool, recipe: str, more: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "decideploy.service"
    path.write_text(systemd(user=user, recipe=recipe, **more)["decideploy.service"])
    command = [tool("systemd-analyze"), "verify", *(["--user"] if user else []), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # It ends with 0 although it does not know a key: that is only said.
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("recipe", "most"), [("cpu", "16"), ("cuda", "18")])
def test_the_exposure_stays_what_the_docs_say(recipe: str, most: str, tmp_path: Path) -> None:
    path = tmp_path / "decideploy.service"
    path.write_text(systemd(recipe=recipe)["decideploy.service"])
    command = [
        tool("systemd-analyze"),
        "security",
        "--offline=yes",
        f"--threshold={most}",
        "--no-pager",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    score = re.search(r"exposure level for \S+: (\S+)", done.stdout)[1]
    assert score in (HERE.parents[1] / "docs" / "one-machine.md").read_text("utf-8")


@pytest.mark.integration
def test_accounts_and_folders_are_made(tmp_path: Path) -> None:
    assert os.geteuid() == 0, "folders of another user are made as root only"
    for name, program in (
        ("decideploy-user.conf", "systemd-sysusers"),
        ("decideploy.conf", "systemd-tmpfiles"),
    ):
        folder = tmp_path / "etc" / ("sysusers.d" if "sysusers" in program else "tmpfiles.d")
        folder.mkdir(parents=True)
        (folder / name).write_text(systemd()[name])
        more = ["--create"] if "tmpfiles" in program else []
        done = subprocess.run(
            [tool(program), *more, f"--root={tmp_path}", name], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    state = tmp_path / "var/lib/decideploy"
    owner = re.search(r"^decideploy:[^:]*:(\d+)", (tmp_path / "etc/passwd").read_text("utf-8"), re.MULTILINE)[
        1
    ]
    for folder in (state, state / "cache", state / "hub", state / "tmp"):
        assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (int(owner), 0o700)


def test_a_folder_with_a_blank_is_one_path() -> None:
    assert 'd "/s t/cache" 0700 - - -\n' in systemd(user=True)["decideploy.conf"]


def test_only_a_gpu_build_sees_gpus() -> None:
    cpu, cuda = (keys(systemd(recipe=recipe)["decideploy.service"], "Service") for recipe in ("cpu", "cuda"))
    assert cpu["PrivateDevices"] == ["yes"]
    assert "DeviceAllow" not in cpu
    assert "PrivateDevices" not in cuda
    assert cuda["DevicePolicy"] == ["closed"]
    assert all(value.startswith("char-nvidia") for value in cuda["DeviceAllow"])


def test_every_road_waits_longer_than_the_drain() -> None:
    assert serve_stop_s(ServerSettings().drain_timeout_s) == SERVE_STOP_S
    unit = keys(systemd()["decideploy.service"], "Service")
    quadlet = keys(quadlet_files(SERVICE, config=Path("/etc"))[0].text, "Container")
    stops = [unit["TimeoutStopSec"][0], quadlet["StopTimeout"][0], compose()["stop_grace_period"][:-1]]
    assert all(int(stop) > serve_stop_s(SERVICE.drain_s) for stop in stops)


def test_no_secret_is_in_a_file_that_others_read(tmp_path: Path) -> None:
    key, path = "a-key-of-sixteen-and-more", tmp_path / "keys"
    path.write_text(key)
    service = replace(SERVICE, api_key_file=path)
    files = (
        *systemd_files(service, config=Path("/c"), state=Path("/s")),
        *quadlet_files(service, config=Path("/etc")),
        *compose_files(service, folder=Path("/x")),
    )
    assert not [file.path for file in files if key in file.text]
    unit = keys(systemd()["decideploy.service"], "Service")
    assert unit["LoadCredential"] == ["api-keys:/etc/decideploy/api-keys"]
    assert unit["ExecStart"][0].endswith("--api-key-file %d/api-keys")


def test_who_never_restarts_is_never_restarted() -> None:
    never = replace(SERVICE, restart="never")
    assert keys(systemd(restart="never")["decideploy.service"], "Service")["Restart"] == ["no"]
    assert compose(never)["restart"] == "no"
    assert compose()["restart"] == "on-failure:3"


@pytest.mark.parametrize("text", ["plain", "a b", '"', "\\", "'", "100%", "$HOME", "tab\there", "ümlaut", ""])
def test_a_word_of_a_unit_means_itself(text: str) -> None:
    # What is left after the two expansions is quoted as a shell quotes.
    said = word(text).replace("%%", "%").replace("$$", "$").replace("\\x09", "\t")
    assert shlex.split(said) == [text]
    assert shlex.split(assignment("A", text).replace("%%", "%").replace("\\x09", "\t")) == [f"A={text}"]


def compose(service: Service = SERVICE) -> dict:
    return yaml.safe_load(compose_files(service, folder=Path("/x"))[0].text)["services"]["decideploy"]


@pytest.mark.parametrize("recipe", ["cpu", "cuda"])
@pytest.mark.parametrize("fetches", [False, True])
def test_compose_is_what_the_specification_says(recipe: str, fetches: bool) -> None:
    schema = json.loads((HERE / "schemas" / "compose-spec.json").read_text("utf-8"))
    token = Path("/etc/decideploy/token") if fetches else None
    service = replace(SERVICE, recipe=recipe, fetches=fetches, hub_token_file=token)
    document = yaml.safe_load(compose_files(service, folder=Path("/x"))[0].text)
    jsonschema.Draft202012Validator(schema).validate(document)
    assert ("deploy" in document["services"]["decideploy"]) is (recipe == "cuda")
    assert document["services"]["decideploy"]["command"][1] == WORST.replace("$", "$$")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(document | {"servises": {}})


@pytest.mark.parametrize("recipe", ["cpu", "cuda"])
def test_quadlet_has_keys_that_podman_knows(recipe: str) -> None:
    known = tomllib.loads((HERE / "quadlet_keys.toml").read_text("utf-8"))
    service = replace(SERVICE, recipe=recipe, hub_token_file=Path("/t"), fetches=True)
    container, volume = quadlet_files(service, config=Path("/etc"))
    assert set(keys(container.text, "Container")) <= set(known["Container"].split())
    assert set(keys(volume.text, "Volume")) <= set(known["Volume"].split())
    assert ("AddDevice" in keys(container.text, "Container")) is (recipe == "cuda")
    sections = configparser.RawConfigParser(strict=False, interpolation=None)
    sections.read_file(io.StringIO(container.text))
    assert sections.sections() == ["Unit", "Container", "Service", "Install"]


@pytest.mark.parametrize("service", [SERVICE, replace(SERVICE, recipe="cpu")])
def test_containers_are_closed(service: Service) -> None:
    quadlet = keys(quadlet_files(service, config=Path("/etc"))[0].text, "Container")
    assert (quadlet["ReadOnly"], quadlet["DropCapability"], quadlet["NoNewPrivileges"]) == (
        ["true"],
        ["all"],
        ["true"],
    )
    assert compose(service)["read_only"]
    assert compose(service)["cap_drop"] == ["ALL"]
    writable = [volume for volume in quadlet["Volume"] if not volume.endswith(":ro")]
    assert writable == ["decideploy.volume:/var/lib/decideploy"]
    assert [one["target"] for one in compose(service)["volumes"] if not one.get("read_only")] == [
        "/var/lib/decideploy"
    ]


def test_containers_are_as_the_image_is() -> None:
    text = CONTAINERFILE.read_text("utf-8")
    quadlet = keys(quadlet_files(SERVICE, config=Path("/etc"))[0].text, "Container")
    assert f"USER {quadlet['User'][0]}:{quadlet['Group'][0]}" in text
    assert f"USER {compose()['user']}" in text
    assert "VOLUME /var/lib/decideploy" in text
    assert f"EXPOSE {compose()['ports'][0].rpartition(':')[2]}" in text
    image_check = json.loads(re.search(r'CMD (\["python", "-c", .*\])', text)[1])
    assert compose()["healthcheck"]["test"] == ["CMD", *image_check]


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    service = replace(
        SERVICE,
        api_key_file=tmp_path / "none",
        hub_token_file=tmp_path / "no-token",
        access_log=Path("/var/log/access"),
        mounts={"/model": Path("/home/someone/model")},
        image="x",
    )
    faults = [*service_faults(service, model="m", revision=None), *hidden_faults(service)]
    told = " ".join(map(str, faults))
    for part in ("API keys", "no-token", "/var/log/access", "does not exist", "does not see", "--image"):
        assert part in told


def test_a_moving_revision_is_refused() -> None:
    faults = list(
        service_faults(replace(SERVICE, fetches=True, mounts={}), model="owner/name", revision="main")
    )
    assert any("revision" in fault.what for fault in faults)


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    first = UnitFile(path=tmp_path / "a" / "one", text="1")
    assert [file.outcome for file in write_files([first])] == ["written"]
    (tmp_path / "blocked").write_text("")
    second = UnitFile(path=tmp_path / "blocked" / "two", text="2")
    with pytest.raises(ConfigError, match="two"):
        write_files([replace(first, text="changed"), second])
    assert first.path.read_text() == "1"
    assert os.listdir(tmp_path / "a") == ["one"]
    assert [file.outcome for file in write_files([first])] == ["unchanged"]
    assert [file.outcome for file in write_files([replace(first, text="new")])] == ["replaced"]


def test_serve_is_told_what_install_was_told() -> None:
    asked = [
        "/srv/model",
        "--prompt-tokens=100,200",
        "--max-images=0",
        "--drain-timeout=7",
        "--strict-kernel",
    ]
    asked += ["--allow-image-host=a.example.com", "--allow-image-host=b.example.com", "--restart=on-failure"]
    parser = make_parser()
    options = parser.parse_args(["install", "--compose", *asked])
    assert vars(parser.parse_args(["serve", *serve_arguments(options)])) == vars(
        parser.parse_args(["serve", *asked])
    )


@pytest.mark.parametrize("kind", ["quadlet", "compose"])
def test_install_writes_and_says_what_comes_next(
    kind: str, tmp_path: Path, demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["install", f"--{kind}", "--recipe=cpu", str(demo_model), f"--out={tmp_path / 'out'}"]
    assert main([*arguments, "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {file["outcome"] for file in told["files"]} == {"written"}
    assert all(Path(file["path"]).is_file() for file in told["files"])
    assert told["next"]
    assert main(arguments) == 0
    assert "unchanged" in capsys.readouterr().out


@pytest.fixture
def hides_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units_install, "HIDDEN", (Path(sys.prefix),))


@pytest.mark.usefixtures("hides_this_python")
def test_files_for_review_are_written_from_where_no_unit_may_run(
    tmp_path: Path, demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["install", "--systemd", "--recipe=cpu", str(demo_model)]
    assert main([*arguments, f"--root={tmp_path / 'root'}"]) == 2
    assert "does not see" in capsys.readouterr().err
    assert main([*arguments, f"--out={tmp_path / 'a b'}", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert any("does not see" in warning for warning in told["warnings"])
    copies = [shlex.split(command) for command in told["next"] if command.startswith("install ")]
    assert [Path(copy[-2]).parent for copy in copies] == [tmp_path / "a b"] * 4
    assert [copy[-1] for copy in copies] == [
        "/etc/systemd/system/decideploy.service",
        "/etc/decideploy/decideploy.env",
        "/etc/tmpfiles.d/decideploy.conf",
        "/etc/sysusers.d/decideploy-user.conf",
    ]
    assert told["next"][-1].endswith("enable --now decideploy.service")


@pytest.mark.integration
def test_the_next_steps_of_another_root_are_taken_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.geteuid() == 0, "folders of another user are made as root only"
    monkeypatch.setattr(units_install, "HIDDEN", ())
    root = tmp_path / "a b"
    assert main(["install", "--systemd", "--recipe=cpu", f"--root={root}", "--json"]) == 0
    commands = json.loads(capsys.readouterr().out)["next"]
    assert len(commands) == 3
    for command in commands:
        subprocess.run(["sh", "-c", command], check=True)
    assert "decideploy" in (root / "etc" / "passwd").read_text("utf-8")
    assert (root / "var" / "lib" / "decideploy" / "hub").is_dir()
    wants = root / "etc" / "systemd" / "system" / "multi-user.target.wants"
    assert [path.name for path in wants.iterdir()] == ["decideploy.service"]


@pytest.mark.parametrize("kind", ["quadlet", "compose"])
def test_a_container_is_told_to_have_no_haproxy(kind: str) -> None:
    service = replace(SERVICE, kind=kind, replicas=True, mounts={})
    faults = [fault.where for fault in service_faults(service, model=None, revision=None)]
    assert "--replicas" in faults


def test_a_reload_of_replicas_is_a_rolling_restart() -> None:
    one, several = (systemd(replicas=replicas)["decideploy.service"] for replicas in (False, True))
    assert "ExecReload" not in keys(one, "Service")
    (reload,) = keys(several, "Service")["ExecReload"]
    options = make_parser().parse_args(shlex.split(reload)[3:])
    assert (shlex.split(reload)[3], options.port) == ("rolling-restart", SERVICE.port)
    limits = [int(keys(text, "Service")["TimeoutStartSec"][0]) for text in (one, several)]
    assert limits[1] - limits[0] == SERVICE.startup_timeout_s + 600


def test_install_tells_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["install", "--compose", "--user", "--recipe=cpu", "/no/model", "--api-key-file=/no/keys"]
    assert main([*arguments, f"--out={tmp_path}"]) == 2
    told = capsys.readouterr().err
    assert all(part in told for part in ("--user", "/no/model", "/no/keys"))
    assert not list(tmp_path.iterdir())

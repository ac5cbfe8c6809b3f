from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from decideploy.errors import ConfigError, IntegrityError
from decideploy.pins import Artifact, fetch
from decideploy.pins import sources as pip_sources
from decideploy.pins.sources import read_pip_sources

REAL_PIP_CONFIG = pip_sources._pip_config
CONTENT = bytes(range(256)) * 9000
WHEEL = Artifact(
    name="demo",
    version="1.0",
    filename="demo-1.0-py3-none-any.whl",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
SDIST = replace(WHEEL, filename="demo-1.0.tar.gz")


class QuietHandler(SimpleHTTPRequestHandler):
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        super().do_GET()

    def log_message(self, *_arguments: object) -> None:
        pass


class Index:
    """A simple index on the loopback interface."""

    def __init__(self, folder: Path, url: str, requests: list[str]) -> None:
        self.folder, self.url, self.requests = folder, url, requests

    def offer(self, artifact: Artifact, content: bytes, *, told: str | None = None) -> None:
        (self.folder / "files").mkdir(exist_ok=True)
        (self.folder / "files" / artifact.filename).write_bytes(content)
        page = self.folder / "simple" / artifact.name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        old = page.read_text() if page.is_file() else ""
        digest = f"#sha256={told}" if told else ""
        link = f'<a href="/files/{artifact.filename}{digest}">{artifact.filename}</a>\n'
        page.write_text(old + link)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    folder = tmp_path / "index"
    folder.mkdir()
    requests: list[str] = []
    handler = type("Handler", (QuietHandler,), {"requests": requests})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/simple/"
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield Index(folder, url, requests)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_find_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of the machine out, and with them a second for each start of pip."""
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setattr("decideploy.pins.sources._pip_config", dict)


def put(folder: Path, artifact: Artifact, content: bytes = CONTENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / artifact.filename).write_bytes(content)
    return folder


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.endswith(".lock")]


@pytest.mark.parametrize("artifact", [WHEEL, SDIST])
def test_fetches_from_the_index(tmp_path: Path, index: Index, artifact: Artifact):
    index.offer(WHEEL, CONTENT, told=WHEEL.sha256)
    index.offer(SDIST, CONTENT, told=WHEEL.sha256)
    seen: list[tuple[int, int]] = []
    path = fetch(artifact, tmp_path / "into", progress=lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "into" / artifact.filename
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert leftovers(tmp_path / "into") == [artifact.filename]


def test_index_without_digests_is_verified_all_the_same(tmp_path: Path, index: Index):
    index.offer(WHEEL, CONTENT)
    assert fetch(WHEEL, tmp_path / "into").read_bytes() == CONTENT


def test_second_fetch_asks_nobody(tmp_path: Path, index: Index):
    index.offer(WHEEL, CONTENT)
    fetch(WHEEL, tmp_path / "into")
    index.requests.clear()
    fetch(WHEEL, tmp_path / "into")
    assert index.requests == []


def test_damaged_copy_is_fetched_again(tmp_path: Path, index: Index):
    index.offer(WHEEL, CONTENT)
    put(tmp_path / "into", WHEEL, b"\1" + CONTENT[1:])
    assert fetch(WHEEL, tmp_path / "into").read_bytes() == CONTENT


def test_wheelhouse_comes_before_the_index(tmp_path: Path, index: Index):
    house = put(tmp_path / "house", WHEEL)
    (empty := tmp_path / "empty").mkdir()
    assert fetch(WHEEL, tmp_path / "into", wheelhouses=[empty, house]).read_bytes() == CONTENT
    assert index.requests == []


def test_local_find_links_of_pip_come_before_the_index(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
):
    house = put(tmp_path / "house", WHEEL)
    monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:1/x {house.as_uri()}")
    assert fetch(WHEEL, tmp_path / "into").read_bytes() == CONTENT
    assert index.requests == []


@pytest.mark.parametrize(
    ("content", "kind"), [(b"\1" + CONTENT[1:], "sha256"), (CONTENT[:-1], "size"), (CONTENT + b"x", "size")]
)
@pytest.mark.parametrize("source", ["wheelhouse", "index"])
def test_wrong_bytes_are_refused_and_not_kept(
    tmp_path: Path, index: Index, content: bytes, kind: str, source: str
):
    houses = [put(tmp_path / "house", WHEEL, content)] if source == "wheelhouse" else []
    index.offer(WHEEL, content)
    with pytest.raises(IntegrityError, match=f"wrong {kind}") as caught:
        fetch(WHEEL, tmp_path / "into", wheelhouses=houses)
    assert caught.value.expected in (WHEEL.sha256, f"{len(CONTENT)} bytes")
    assert caught.value.actual not in ("", caught.value.expected)
    assert ("house" in caught.value.source) == (source == "wheelhouse")
    assert leftovers(tmp_path / "into") == []


def test_index_that_lists_another_digest_is_refused_before_the_download(tmp_path: Path, index: Index):
    index.offer(WHEEL, CONTENT, told="0" * 64)
    with pytest.raises(IntegrityError) as caught:
        fetch(WHEEL, tmp_path / "into")
    assert caught.value.actual == "0" * 64
    assert not any(path.startswith("/files/") for path in index.requests)


def test_project_or_file_that_is_not_on_the_index_is_told(tmp_path: Path, index: Index):
    with pytest.raises(IntegrityError, match="not on the index"):
        fetch(WHEEL, tmp_path / "into")
    index.offer(SDIST, CONTENT)
    with pytest.raises(IntegrityError, match="not on the index") as caught:
        fetch(WHEEL, tmp_path / "into")
    assert caught.value.source == index.url


@pytest.mark.parametrize(
    ("content_type", "page"),
    [
        ("text/plain", "welcome"),
        ("text/html", '<meta name="pypi:repository-version" content="9.0"><a href="x">x</a>'),
    ],
)
def test_server_that_is_no_package_index_is_told(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch, content_type: str, page: str
):
    folder = index.folder / "simple" / WHEEL.name
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(page)
    monkeypatch.setattr(QuietHandler, "guess_type", lambda _self, _path: content_type)
    with pytest.raises(ConfigError, match="no package index") as caught:
        fetch(WHEEL, tmp_path / "into")
    assert caught.value.where == index.url
    assert "PIP_INDEX_URL" in caught.value.next_step


def test_file_that_the_server_lost_is_told(tmp_path: Path, index: Index):
    index.offer(WHEEL, CONTENT)
    (index.folder / "files" / WHEEL.filename).unlink()
    with pytest.raises(IntegrityError, match="could not be downloaded"):
        fetch(WHEEL, tmp_path / "into")


def test_without_network_a_wheelhouse_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(IntegrityError, match="--wheelhouse DIR"):
        fetch(WHEEL, tmp_path / "into")


def test_concurrent_fetches_download_once(tmp_path: Path, index: Index):
    index.offer(WHEEL, CONTENT)
    threads = [threading.Thread(target=fetch, args=(WHEEL, tmp_path / "into")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path for path in index.requests if path.startswith("/files/")] == [f"/files/{WHEEL.filename}"]


def test_pip_configuration_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("decideploy.pins.sources._pip_config", REAL_PIP_CONFIG)
    config = tmp_path / "pip.conf"
    config.write_text(
        f"[global]\nindex-url = http://127.0.0.1:9/simple\nfind-links =\n  {tmp_path}\n  /nowhere\n"
    )
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    sources = read_pip_sources()
    assert sources.index_url == "http://127.0.0.1:9/simple"
    assert sources.find_links == (tmp_path,)


def test_environment_without_pip_is_no_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("decideploy.pins.sources._pip_config", REAL_PIP_CONFIG)
    monkeypatch.setattr("decideploy.pins.sources.sys.executable", "/bin/false")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert read_pip_sources().index_url == "http://127.0.0.1:9/simple"

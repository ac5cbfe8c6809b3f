"""HAProxy's configuration in front of replicas, as a pure function of what it stands in front of.

What HAProxy may repeat. A request that never reached a replica (``conn-failure``) is repeated on another,
whatever it asks. One that may have reached it is repeated only where a second run leaves the same state as
one: decisions, which read nothing but their request and leave nothing behind, and GET and HEAD. Then
``empty-response`` (the replica died with the request) and ``503`` (it drains, is not ready, or its engine has
died) are repeated too, as long as no byte of an answer has gone to the client. Everything else, generated
text among it, is answered 503 with ``Retry-After`` instead of twice: the client knows whether it wants that
again. It is repeated once: a request that kills an engine must not walk through all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from decideploy.errors import ConfigError

BACKEND: Final = "replicas"
ADMIN_SOCKET: Final = "admin.sock"
"""In the folder that HAProxy runs in."""

STOP_S: Final = 3
"""Seconds that HAProxy may take to hand over its last answers."""

_DECISIONS: Final = ("/v1/decide", "/v1/systemone", "/v1/decisions")
# What is told of one replica by its number, beside what the front answers for all of them.
_OF_ONE: Final = ("metrics", "ready", "live", "v1/decide/info")
# Twice or more of it are held for a request that is under way. A larger body is passed on as it comes, and
# cannot be sent a second time.
_REPEATABLE_BYTES: Final = 128 * 1024
# Beyond what the replicas admit: connections that are idle, and those that are about to be told 429.
_CONNECTIONS_PER_REQUEST, _FEWEST_CONNECTIONS, _MOST_CONNECTIONS = 4, 4096, 20_000
# Later than the replica's own 504.
_LATER_S: Final = 10
_CONNECT_S: Final = 2
_TUNNEL_S: Final = 3600
_SILENCE_S: Final = 15
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
# As long as the replicas keep theirs.
_KEEP_ALIVE_S: Final = 75
_RETRY_AFTER_S: Final = 5
_LOG: Final = {
    "time": "%[date,utime(%Y-%m-%dT%H:%M:%SZ)]",
    "request_id": "%[var(txn.request_id),json(utf8s)]",
    "method": "%HM",
    "route": "%[var(txn.path),json(utf8s)]",
    "status": "%ST",
    "replica": "%s",
    "repeated": "%rc",
    "ended": "%ts",
    "ms": "%Ta",
}

_Form: TypeAlias = Literal["error", "detail", "messages"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Refusal:
    """An answer that no replica gives."""

    code: str
    message: str
    type: str = "server_error"


_UNSERVED: Final = _Refusal(code="no_replica", message="no replica could answer; try again later")
_TIMEOUT: Final = _Refusal(code="timeout", message="the request took longer than this server lets one take")
_LATE: Final = _Refusal(
    code="body_timeout",
    message="the request did not arrive in the time that this server waits for one",
    type="invalid_request_error",
)
_NO_METRICS: Final = _Refusal(
    code="metrics_of_a_replica",
    message="each replica has metrics of its own: /replicas/0/metrics and so on",
    type="invalid_request_error",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Front:
    """What HAProxy listens on and stands in front of.

    ``host`` and ``port`` are public; ``stats_port`` is one of 127.0.0.1. ``replicas`` are hosts and ports.
    ``requests`` is how many all replicas together admit, ``request_timeout_s`` and ``body_timeout_s`` are
    their limits in seconds.
    """

    host: str
    port: int
    stats_port: int
    replicas: tuple[tuple[str, int], ...]
    requests: int = 512
    request_timeout_s: float = 300.0
    body_timeout_s: float = 30.0

    @property
    def reaches_beyond(self) -> bool:
        """Whether a replica is on another machine."""
        return any(host not in _LOOPBACK for host, _ in self.replicas)


def server_name(index: int) -> str:
    """HAProxy's name of the replica number ``index``, from 0."""
    return f"replica-{index}"


def front_config(front: Front) -> str:
    """The text of ``haproxy.cfg``; ConfigError when the host is none that a configuration can name.

    The file names no path: HAProxy runs in the folder that holds its admin socket, which is that of its user
    alone.
    """
    sections = (
        _section("global", _global(front)),
        _section("defaults", _defaults(front)),
        _section("frontend public", _public(front)),
        _section(f"backend {BACKEND}", _replicas(front)),
        *(
            _section(f"backend {server_name(index)}", [f"server {server_name(index)} {_address(*address)}"])
            for index, address in enumerate(front.replicas)
        ),
        _section("frontend stats", _stats(front)),
    )
    return "\n".join(sections)


def _section(name: str, lines: Iterator[str] | list[str]) -> str:
    return "\n".join((name, *(f"    {line}" for line in lines), ""))


def _global(front: Front) -> Iterator[str]:
    connections = max(_FEWEST_CONNECTIONS, _CONNECTIONS_PER_REQUEST * front.requests)
    yield "log stdout format raw local0"
    yield f"stats socket unix@{ADMIN_SOCKET} mode 600 level admin"
    yield f"hard-stop-after {STOP_S}s"
    # Far from being the bottleneck: the cores are the engines'.
    yield "nbthread 2"
    yield f"maxconn {min(connections, _MOST_CONNECTIONS)}"
    yield f"tune.bufsize {_REPEATABLE_BYTES}"


def _defaults(front: Front) -> Iterator[str]:
    yield "mode http"
    yield "log global"
    # The replicas log every request; this log has what was repeated, and what none of them answered.
    yield "option dontlog-normal"
    # A client that leaves ends the work that it asked for.
    yield "option abortonclose"
    yield "option forwardfor"
    yield f"timeout connect {_CONNECT_S}s"
    yield f"timeout client {_ms(front.request_timeout_s + _LATER_S)}"
    yield f"timeout server {_ms(front.request_timeout_s + _LATER_S)}"
    yield f"timeout http-request {_ms(front.body_timeout_s)}"
    yield f"timeout http-keep-alive {_KEEP_ALIVE_S}s"
    yield f"timeout tunnel {_TUNNEL_S}s"
    yield from _errors()


def _errors() -> Iterator[str]:
    """What HAProxy answers by itself, in the words of the API that was asked."""
    error = "http-error status {} content-type application/json lf-string {}"
    for status in (502, 503):
        yield f"{error.format(status, '%[var(txn.unserved)]')} hdr Retry-After {_RETRY_AFTER_S}"
    yield error.format(504, "%[var(txn.timeout)]")
    # The request's head is not known by then.
    yield error.format(408, _words(_LATE))


def _public(front: Front) -> Iterator[str]:
    yield f"bind {_address(front.host, front.port)}{' v6only' if front.host == '::' else ''}"
    log = ", ".join(f'"{name}": "{value}"' for name, value in _LOG.items())
    yield f"log-format {_quoted('{' + log + '}')}"
    # The whole of a request that fits, so that it can be sent twice.
    yield "option http-buffer-request"
    yield "http-request set-var(txn.path) path"
    # One id for every attempt, and for an answer that no replica gives.
    yield (
        "http-request set-header x-request-id %[uuid()] "
        "unless { req.fhdr(x-request-id) -m reg ^[A-Za-z0-9._:-]{1,128}$ }"
    )
    yield "http-request set-var(txn.request_id) req.fhdr(x-request-id)"
    yield from _told_refusals()
    yield from _told_for_all(len(front.replicas))
    yield f"acl decision path {' '.join(_DECISIONS)}"
    yield "acl reading method GET HEAD"
    yield "http-request disable-l7-retry unless decision or reading"
    yield "http-response set-var(txn.answered) bool(true)"
    # A replica that dies with a request that cannot be repeated is no bad gateway: another will do.
    yield "http-after-response set-status 503 if { status 502 } !{ var(txn.answered) -m found }"
    yield (
        "http-after-response set-header x-request-id %[var(txn.request_id)] "
        "if { var(txn.request_id) -m found } !{ res.fhdr(x-request-id) -m found }"
    )
    for index in range(len(front.replicas)):
        yield f"use_backend {server_name(index)} if {{ var(txn.replica) -m str {index} }}"
    yield f"default_backend {BACKEND}"


def _told_refusals() -> Iterator[str]:
    """Lay the bodies of errors ready, each in the form that the clients of its path read."""
    for name, refusal in (("unserved", _UNSERVED), ("timeout", _TIMEOUT)):
        lay = f"http-request set-var-fmt(txn.{name})"
        yield f"{lay} {_words(refusal)}"
        yield f"{lay} {_words(refusal, 'detail')} if {{ path /v1/systemone }}"
        yield f"{lay} {_words(refusal, 'messages')} if {{ path_beg /v1/messages }}"


def _told_for_all(count: int) -> Iterator[str]:
    """The routes that the front answers itself, and those of one replica by its number."""
    is_up = f"{{ nbsrv({BACKEND}) gt 0 }}"
    returned = (
        "http-request return status {} content-type application/json hdr cache-control no-store lf-string {}"
    )
    yield f"{returned.format(200, _json({'live': True}))} if {{ path /live }}"
    yield f"{returned.format(200, _ready(count, ready=True))} if {{ path /ready }} {is_up}"
    yield f"{returned.format(503, _ready(count, ready=False))} if {{ path /ready }}"
    # Of one replica after the other, counters would seem to jump.
    yield f"{returned.format(404, _words(_NO_METRICS))} if {{ path /metrics }}"
    yield f"acl of_one path -m reg ^/replicas/[0-9]+/({'|'.join(_OF_ONE)})$"
    yield "http-request set-var(txn.replica) path,field(3,/) if of_one"
    yield "http-request replace-path ^/replicas/[0-9]+(/.*)$ \\\\1 if of_one"


def _ready(count: int, *, ready: bool) -> str:
    document = {
        "schema_version": 1,
        "ready": ready,
        "phase": "ready" if ready else "failing",
        "reasons": [] if ready else ["no replica is ready: /replicas/0/ready tells why the first is not"],
        "failures": [],
        "selftest": None,
    }
    known = json.dumps(document)[:-1]
    counted = f'{_escaped(known)}, "replicas": {{"ready": %[nbsrv({BACKEND})], "all": {count}}}}}'
    return _quoted(counted)


def _replicas(front: Front) -> Iterator[str]:
    yield "balance leastconn"
    yield "option httpchk GET /ready"
    yield "http-check expect status 200"
    # A busy replica answers late, not never; one that drains is sent nothing by its 503 being repeated.
    yield "timeout check 5s"
    yield "option redispatch 1"
    yield "retries 1"
    yield "retry-on conn-failure empty-response 503"
    yield (
        "default-server check inter 1s fastinter 500ms downinter 1s fall 3 rise 1 "
        "observe layer4 error-limit 1 on-error mark-down"
    )
    yield from _silence() if front.reaches_beyond else ()
    # HAProxy 2.6 reads this on a server's own line, and not on that of all of them.
    limit = f" tcp-ut {_SILENCE_S}s" if front.reaches_beyond else ""
    for index, address in enumerate(front.replicas):
        yield f"server {server_name(index)} {_address(*address)}{limit}"


def _silence() -> Iterator[str]:
    """A machine that is gone sends no reset: silence is asked for, and what it does not acknowledge given up.

    The price is a body that a replica does not read for so long, as it may while the request waits for its
    turn; on this machine nothing needs that.
    """
    yield "option srvtcpka"
    yield "srvtcpka-idle 5s"
    yield "srvtcpka-intvl 2s"
    yield "srvtcpka-cnt 3"


def _stats(front: Front) -> Iterator[str]:
    yield f"bind 127.0.0.1:{front.stats_port}"
    yield "http-request use-service prometheus-exporter if { path /metrics }"
    yield "stats enable"
    yield "stats uri /"


def _words(refusal: _Refusal, form: _Form = "error") -> str:
    """``refusal`` as the clients of one API read errors; the gateway has the same forms."""
    documents: dict[_Form, dict[str, Any]] = {
        "error": {
            "error": {"message": refusal.message, "type": refusal.type, "param": None, "code": refusal.code}
        },
        "detail": {"detail": [{"loc": ["request"], "msg": refusal.message, "type": refusal.code}]},
        "messages": {"type": "error", "error": {"type": "api_error", "message": refusal.message}},
    }
    return _json(documents[form])


def _json(document: Mapping[str, Any]) -> str:
    return _quoted(_escaped(json.dumps(document)))


def _escaped(text: str) -> str:
    """``text`` as it stands in a format."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """One word of a configuration, whatever it holds."""
    escaped = "".join(f"\\{character}" if character in '\\"$' else character for character in text)
    return f'"{escaped}"'


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def _address(host: str, port: int) -> str:
    if not host or not all(character.isalnum() or character in ".:-_%" for character in host):
        raise ConfigError(
            f"{host!r} is no address that HAProxy can be given",
            where="--host",
            next_step="give --host an address of this machine, or 0.0.0.0 for all of them",
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

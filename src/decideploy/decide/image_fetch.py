"""Images by https, for a server that must not be turned against the network it stands in.

The name is resolved once, every address is checked, and the connection goes to a checked address itself: a
second answer of the name server finds nobody who asks. Redirects and proxies would undo that, so there are
none.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

import httpx

from decideploy.decide.image_sources import (
    MEDIA_TYPES,
    EncodedImage,
    ImageFaultError,
    checked_media_type,
    too_large,
)

Resolve: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_PORT: Final = 443
_MAX_URL_CHARACTERS: Final = 2048
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# Teredo and its kin, examples, 6to4: inside global unicast, yet they stand for IPv4 addresses or for nothing.
_SPECIAL_IPV6: Final = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
# Protocol assignments and relays to IPv6: some releases of the library count them among the global ones.
_SPECIAL_IPV4: Final = tuple(map(ipaddress.IPv4Network, ("192.0.0.0/24", "192.88.99.0/24")))


def is_public(address: str) -> bool:
    """Whether ``address`` is a host of the public internet, not a private one or the disguise of one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        special = parsed.is_multicast or parsed.is_reserved or _is_in(parsed, _SPECIAL_IPV4)
        return parsed.is_global and not special
    # Outside 2000::/3 lie, among others, IPv4-mapped and NAT64 addresses, which reach IPv4 networks.
    known = parsed in _GLOBAL_UNICAST and not _is_in(parsed, _SPECIAL_IPV6)
    return known and parsed.is_global and parsed.scope_id is None


def _is_in(address: IpAddress, networks: Iterable[IpNetwork]) -> bool:
    return any(address in network for network in networks)


async def resolve_host(host: str) -> Sequence[str]:
    """All addresses of ``host``, by the system's resolver; OSError when there is none."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, _PORT, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def verified_transport(tls: ssl.SSLContext | None = None) -> Callable[[], httpx.AsyncBaseTransport]:
    """Makes transports that verify certificates by ``tls``, by default by the well-known authorities."""
    # Reading the authorities takes tens of milliseconds: once, not for each image.
    context = tls or httpx.create_ssl_context(trust_env=False)
    return lambda: httpx.AsyncHTTPTransport(verify=context, trust_env=False)


class ImageFetcher:
    """GETs images of at most ``max_bytes`` from ``hosts`` (exact names), each within ``timeout_s`` in all.

    ``resolve`` and ``transport``, which is called for each connection, stand for the network.
    """

    def __init__(
        self,
        hosts: Collection[str],
        *,
        max_bytes: int,
        timeout_s: float,
        resolve: Resolve = resolve_host,
        transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
    ) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._resolve = resolve
        self._transport = transport or verified_transport()

    async def fetch(self, url: str) -> EncodedImage:
        """The image at the https ``url``; ImageFaultError for every way in which that can fail."""
        target = self._checked(url)
        host = target.raw_host.decode("ascii")
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._get(target, host, await self._addresses(host))
        except TimeoutError as error:
            raise _unfetched(host, f"no answer within {self._timeout_s:g} s") from error

    def _checked(self, url: str) -> httpx.URL:
        if len(url) > _MAX_URL_CHARACTERS:
            raise _malformed(f"is longer than {_MAX_URL_CHARACTERS} characters")
        try:
            target = httpx.URL(url)
        except (httpx.InvalidURL, ValueError) as error:
            raise _malformed("is no URL") from error
        if target.userinfo or target.port not in (None, _PORT):
            raise _malformed(f"names a user or a port other than {_PORT}")
        if target.raw_host.decode("ascii") not in self._hosts:
            raise ImageFaultError(
                "image_host_not_allowed",
                "its host is none from which this server fetches images; send it as a data: URL",
            )
        return target

    async def _addresses(self, host: str) -> Sequence[str]:
        try:
            addresses = await self._resolve(host)
        except (OSError, UnicodeError) as error:
            raise _unfetched(host, "the name cannot be resolved") from error
        # One private address among public ones is an attack or a mistake: no part of it is used.
        if not addresses or not all(map(is_public, addresses)):
            raise ImageFaultError(
                "image_address_not_public", f"{host} does not lead to public addresses only"
            )
        return addresses

    async def _get(self, target: httpx.URL, host: str, addresses: Sequence[str]) -> EncodedImage:
        """The answer of the first address that takes the connection."""
        for address in addresses[:-1]:
            try:
                return await self._get_from(target, host, address)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        try:
            return await self._get_from(target, host, addresses[-1])
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _unfetched(host, "no connection, or none with a certificate of that name") from error

    async def _get_from(self, target: httpx.URL, host: str, address: str) -> EncodedImage:
        request = httpx.Request(
            "GET",
            target.copy_with(host=address, fragment=None),
            headers={"Host": host, "Accept": ", ".join(MEDIA_TYPES), "Accept-Encoding": "identity"},
            # The certificate must be of this name: the URL holds the address.
            extensions={"sni_hostname": host, "timeout": httpx.Timeout(self._timeout_s).as_dict()},
        )
        # A client for one request: a pool of connections tells addresses apart, not the names behind them.
        async with httpx.AsyncClient(transport=self._transport(), trust_env=False) as client:
            try:
                async with aclosing(await client.send(request, stream=True)) as response:
                    return await self._read(host, response)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                raise
            except httpx.HTTPError as error:
                raise _unfetched(host, f"the transfer failed ({type(error).__name__})") from error

    async def _read(self, host: str, response: httpx.Response) -> EncodedImage:
        if response.status_code != httpx.codes.OK:
            raise _unfetched(host, f"HTTP {response.status_code}; redirects are not followed")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise _unfetched(host, "the answer is compressed, which was not asked for")
        media_type = checked_media_type(response.headers.get("content-type", ""))
        content = bytearray()
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > self._max_bytes:
                raise too_large(self._max_bytes)
        return EncodedImage(content=bytes(content), media_type=media_type)


def _malformed(what: str) -> ImageFaultError:
    return ImageFaultError("image_url_malformed", f"its URL {what}")


def _unfetched(host: str, what: str) -> ImageFaultError:
    return ImageFaultError("image_fetch_failed", f"it cannot be fetched from {host}: {what}")

"""Images of a state: from URLs to RGB pixels, believing neither what the URL nor what the bytes say."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeVar

from decideploy.decide.image_sources import EncodedImage, ImageFaultError, read_data_url
from decideploy.decide.prompts import no_images
from decideploy.decide.schema import ImageLimits, RequestError
from decideploy.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

    from decideploy.decide.image_fetch import ImageFetcher

MIB: Final = 2**20
_HOST_NAME: Final = re.compile(
    r"(?=.{1,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]*[a-z0-9])"
)
_SCHEME_CHARACTERS: Final = 8

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePolicy:
    """What images a request may bring; ConfigError for limits or host names that make no sense.

    ``allowed_hosts``: exact names from which https images may be fetched; none by default. ``max_count``
    images a request (0: images are not served), each of at most ``max_bytes`` encoded bytes and
    ``max_pixels`` pixels, and ``max_total_bytes`` together. ``fetch_timeout_s`` holds for one whole fetch.
    ``concurrent_decodes`` images of all requests are decoded at once, each in 6 to 12 bytes a pixel.
    """

    allowed_hosts: tuple[str, ...] = ()
    max_count: int = 4
    max_bytes: int = 8 * MIB
    max_total_bytes: int = 16 * MIB
    max_pixels: int = 16_777_216
    fetch_timeout_s: float = 10.0
    concurrent_decodes: int = 2

    def __post_init__(self) -> None:
        faults = [
            f"{host!r} is no host name"
            for host in self.allowed_hosts
            if not _HOST_NAME.fullmatch(host.lower())
        ]
        limits = ("max_bytes", "max_total_bytes", "max_pixels", "fetch_timeout_s", "concurrent_decodes")
        faults += [f"{name} is not above 0" for name in limits if not getattr(self, name) > 0]
        if self.max_count < 0:
            faults.append("max_count is below 0")
        if faults:
            raise ConfigError(
                "; ".join(faults),
                where="--allow-image-host and the limits of images",
                next_step="write a host as images.example.com, without scheme, port or wildcard; "
                "make each limit positive",
            )


class ImageLoader:
    """Loads the images of requests within ``policy``; ``fetcher`` replaces the one that https URLs go to.

    Close it, or use it in a ``with`` statement, to end its threads.
    """

    def __init__(self, policy: ImagePolicy, *, fetcher: ImageFetcher | None = None) -> None:
        # Imported late: Pillow and httpx are needed where images are served, not where this is imported.
        from decideploy.decide.image_pixels import decode  # noqa: PLC0415

        self.policy = policy
        self._decode = decode
        self._fetcher = fetcher or _fetcher(policy)
        self._threads = ThreadPoolExecutor(policy.concurrent_decodes, thread_name_prefix="image")

    def close(self) -> None:
        """End the threads; images that wait for one are not decoded any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def limits(self) -> ImageLimits:
        """What a request may hold, as ``/v1/decide/info`` tells it."""
        return ImageLimits(
            max_count=self.policy.max_count,
            max_bytes=self.policy.max_bytes,
            max_pixels=self.policy.max_pixels,
            allowed_hosts=self.policy.allowed_hosts,
        )

    async def load(self, urls: Sequence[str]) -> tuple[Image, ...]:
        """The images at ``urls``, in order: mode RGB, upright, transparency on white, without metadata.

        Raises RequestError (422, param "state") that names every image at fault; its code is the first's.
        """
        if not urls:
            return ()
        self._check_count(len(urls))
        sources = await asyncio.gather(*map(self._source, urls))
        self._check_total(sources)
        images = await asyncio.gather(*map(self._pixels, sources))
        faults = [(i, image) for i, image in enumerate(images) if isinstance(image, ImageFaultError)]
        if faults:
            told = "; ".join(f"image [{index}]: {fault}" for index, fault in faults)
            raise _refused(faults[0][1].code, told)
        return tuple(image for image in images if not isinstance(image, ImageFaultError))

    def _check_count(self, count: int) -> None:
        if not self.policy.max_count:
            raise no_images()
        if count > self.policy.max_count:
            raise _refused(
                "image_too_many", f"{count} images; a request may have {self.policy.max_count} at most"
            )

    def _check_total(self, sources: Iterable[EncodedImage | ImageFaultError]) -> None:
        total = sum(len(source.content) for source in sources if isinstance(source, EncodedImage))
        if total > self.policy.max_total_bytes:
            raise _refused(
                "image_too_large",
                f"the images have {total} bytes; together they may have {self.policy.max_total_bytes}",
            )

    async def _source(self, url: str) -> EncodedImage | ImageFaultError:
        scheme = url[:_SCHEME_CHARACTERS].partition(":")[0].lower()
        try:
            if scheme == "data":
                return await self._in_thread(read_data_url, url, self.policy.max_bytes)
            if scheme == "https" and self._fetcher is not None:
                return await self._fetcher.fetch(url)
        except ImageFaultError as fault:
            return fault
        served = "a data: URL" if self._fetcher is None else "a data: or an https: URL"
        return ImageFaultError("image_url_unsupported", f"must be {served}")

    async def _pixels(self, source: EncodedImage | ImageFaultError) -> Image | ImageFaultError:
        if isinstance(source, ImageFaultError):
            return source
        try:
            return await self._in_thread(self._decode, source, self.policy.max_pixels)
        except ImageFaultError as fault:
            return fault

    async def _in_thread(self, work: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


def _fetcher(policy: ImagePolicy) -> ImageFetcher | None:
    if not policy.allowed_hosts:
        return None
    from decideploy.decide.image_fetch import ImageFetcher  # noqa: PLC0415

    return ImageFetcher(policy.allowed_hosts, max_bytes=policy.max_bytes, timeout_s=policy.fetch_timeout_s)


def _refused(code: str, what: str) -> RequestError:
    return RequestError(what, param="state", code=code)

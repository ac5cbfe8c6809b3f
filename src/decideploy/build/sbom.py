"""Bills of materials in CycloneDX, the same bytes for the same inputs.

Serial number and time are what would differ between two builds: the number follows from the subject's
digest, and no time is written.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from decideploy import __version__
from decideploy.build.series import Patch
from decideploy.build.wheelhouse import requirement_entries
from decideploy.errors import IntegrityError
from decideploy.pins import Lock, Recipe
from decideploy.pins.lock import file_sha256

if TYPE_CHECKING:
    from cyclonedx.model import HashType
    from cyclonedx.model.component import Component, Pedigree
    from cyclonedx.model.component import Patch as ComponentPatch
    from cyclonedx.model.license import License

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:decideploy:sbom")
_SHA256 = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VERSION = re.compile(r"==([^\s;\\]+)")


def sbom_path(artifact: Path) -> Path:
    """Where the bill of an artifact lies: beside it, with ``.cdx.json`` added."""
    return artifact.with_name(f"{artifact.name}.cdx.json")


def wheel_sbom(
    wheel: Path, *, sha256: str, recipe: Recipe, lock: Lock, series: Sequence[Patch], root: Path
) -> dict[str, Any]:
    """Return the bill of a patched wheel as a CycloneDX 1.6 document.

    The wheel's pedigree names the upstream wheel and holds every patch whole. Each locked dependency stands
    once, with the sha256 of every file that the requirement files under ``root`` accept and the Pythons that
    they are for; its licence is in the bill of a bundle, which has the wheel at hand.
    """
    subject = patched_component(wheel, sha256=sha256, recipe=recipe, lock=lock, series=series)
    return document(subject, _locked_components(lock, root))


def document(subject: Component, components: Iterable[Component]) -> dict[str, Any]:
    """Return a bill of ``subject``, which depends on all ``components``."""
    from cyclonedx.model.bom import Bom  # noqa: PLC0415
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from cyclonedx.output import make_outputter  # noqa: PLC0415
    from cyclonedx.schema import OutputFormat, SchemaVersion  # noqa: PLC0415

    parts = list(components)
    tool = Component(name="decideploy", version=__version__, type=ComponentType.APPLICATION)
    digests = sorted(entry.content for entry in subject.hashes)
    bom = Bom(components=parts, serial_number=uuid.uuid5(_NAMESPACE, " ".join(digests)))
    bom.metadata.component = subject
    bom.metadata.tools.components.add(tool)
    bom.register_dependency(subject, parts)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    bill: dict[str, Any] = json.loads(text)
    del bill["metadata"]["timestamp"]
    return bill


def write_sbom(artifact: Path, bill: Mapping[str, Any]) -> Path:
    """Write ``bill`` to :func:`sbom_path` and return that path."""
    path = sbom_path(artifact)
    path.write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return path


def patched_component(
    wheel: Path, *, sha256: str, recipe: Recipe, lock: Lock, series: Sequence[Patch]
) -> Component:
    """Return the component of the patched wheel in the file ``wheel``, its pedigree included."""
    return wheel_component(wheel, sha256=sha256, pedigree=_pedigree(wheel, recipe, lock, series))


def sha256_component(name: str, version: str, sha256: str, *, kind: str = "application") -> Component:
    """Return the component of something that is no package, of CycloneDX type ``kind``."""
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415

    return Component(
        name=name, version=version or None, type=ComponentType(kind), bom_ref=name, hashes=[_sha256(sha256)]
    )


def wheel_component(wheel: Path, *, sha256: str = "", pedigree: Pedigree | None = None) -> Component:
    """Return the component of any wheel: name, version and licence by its METADATA, digest by its bytes."""
    metadata = read_metadata(wheel)
    return _component(
        metadata["Name"],
        metadata["Version"],
        filename=wheel.name,
        hashes=[sha256 or file_sha256(wheel)],
        licenses=_licenses(metadata),
        pedigree=pedigree,
    )


def read_metadata(wheel: Path) -> Message:
    """Return the METADATA of a wheel; IntegrityError when it cannot be read."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (
                name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)
            )
            return HeaderParser().parsestr(archive.read(name).decode())
    except (zipfile.BadZipFile, zlib.error, ValueError) as error:
        raise IntegrityError(f"the wheel cannot be read: {error}", where=str(wheel)) from error


def _component(
    name: str, version: str, *, filename: str = "", hashes: Iterable[str], **more: Any
) -> Component:
    from cyclonedx.model.component import Component  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    qualifiers = {"file_name": filename} if filename else None
    purl = PackageURL(type="pypi", name=canonicalize_name(name), version=version, qualifiers=qualifiers)
    found = [_sha256(value) for value in hashes]
    return Component(
        name=canonicalize_name(name), version=version, purl=purl, bom_ref=str(purl), hashes=found, **more
    )


def _sha256(value: str) -> HashType:
    from cyclonedx.model import HashAlgorithm, HashType  # noqa: PLC0415

    return HashType(alg=HashAlgorithm.SHA_256, content=value)


def _licenses(metadata: Message) -> list[License]:
    """The licence as an SPDX expression where METADATA has one, else in the words of its author.

    Some put the whole text into the field: then only its first line tells anything.
    """
    from cyclonedx.contrib.license.factories import LicenseFactory  # noqa: PLC0415

    expression = metadata.get("License-Expression")
    told = expression or (metadata.get("License") or "").strip().partition("\n")[0]
    classifiers = (line.rpartition(" :: ") for line in metadata.get_all("Classifier") or [])
    named = [name for kind, _, name in classifiers if kind.startswith("License ::")]
    factory = LicenseFactory()
    return [factory.make_from_string(told)] if told else [factory.make_from_string(name) for name in named]


def _pedigree(wheel: Path, recipe: Recipe, lock: Lock, series: Sequence[Patch]) -> Pedigree:
    from cyclonedx.model.component import Pedigree  # noqa: PLC0415

    upstream = _component(
        recipe.upstream.distribution,
        recipe.upstream.version,
        filename=recipe.upstream.wheel.filename,
        hashes=[lock.upstream.wheel.sha256],
        # The patches change no licence, so the upstream wheel's is the one in the patched METADATA.
        licenses=_licenses(read_metadata(wheel)),
    )
    return Pedigree(ancestors=[upstream], patches=[_patch(patch) for patch in series])


def _patch(patch: Patch) -> ComponentPatch:
    from cyclonedx.model import AttachedText, Encoding, XsUri  # noqa: PLC0415
    from cyclonedx.model.component import Diff, PatchClassification  # noqa: PLC0415
    from cyclonedx.model.component import Patch as ComponentPatch  # noqa: PLC0415
    from cyclonedx.model.issue import IssueClassification, IssueType, IssueTypeSource  # noqa: PLC0415

    content = base64.b64encode(patch.content).decode()
    bug = patch.header.get("Bug")
    resolved = IssueType(
        type=IssueClassification.DEFECT,
        id=patch.name,
        name=patch.description,
        source=IssueTypeSource(url=XsUri(bug)) if bug else None,
    )
    text = AttachedText(content=content, content_type="text/x-diff", encoding=Encoding.BASE_64)
    return ComponentPatch(type=PatchClassification.UNOFFICIAL, diff=Diff(text=text), resolves=[resolved])


def _locked_components(lock: Lock, root: Path) -> list[Component]:
    from cyclonedx.model import Property  # noqa: PLC0415

    hashes: dict[tuple[str, str], set[str]] = {}
    pythons: dict[tuple[str, str], list[str]] = {}
    for file in (file for file in lock.requirements if file.purpose == "runtime"):
        text = (root / "build" / "locks" / file.filename).read_text("utf-8")
        for name, entry in requirement_entries(text):
            key = (name, _VERSION.findall(entry)[0])
            hashes.setdefault(key, set()).update(_SHA256.findall(entry))
            pythons.setdefault(key, []).append(file.python)
    return [
        _component(
            name,
            version,
            hashes=sorted(hashes[name, version]),
            properties=[Property(name="decideploy:python", value=" ".join(pythons[name, version]))],
        )
        for name, version in sorted(hashes)
    ]

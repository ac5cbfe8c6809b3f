import json
from pathlib import Path

import pytest

from decideploy.bundle.install import main

SHA256 = "0" * 64


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "wheels/../../outside", ""])
@pytest.mark.parametrize("kind", ["parts", "files"])
def test_a_name_that_leads_out_of_the_bundle_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    part = {"name": "bundle.tar.000", "size_bytes": 1, "sha256": SHA256}
    file = {"path": "wheels/a.whl", "size_bytes": 1, "sha256": SHA256, "from_host": False}
    manifest = {"schema_version": 1, "parts": [part], "files": [file]}
    manifest[kind] = [{**manifest[kind][0], "name" if kind == "parts" else "path": name}]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert main([str(tmp_path), "--prefix", str(tmp_path / "prefix")]) == 3
    assert f"names {name!r}, which is outside of the bundle" in capsys.readouterr().err
    assert not (tmp_path / "prefix").exists()

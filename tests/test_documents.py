"""What README says is what the program has."""

import re
from pathlib import Path

from decideploy.build import read_series
from decideploy.decide import ADAPTER_NAME
from decideploy.pins import data_root

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_every_patch_has_a_row():
    numbers = {patch.name[:4] for patch in read_series(data_root())}
    assert set(re.findall(r"^\| patch (\d{4}) ", README, re.MULTILINE)) == numbers


def test_links_lead_somewhere():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_no_document_names_a_file_that_is_not_there():
    named = set(re.findall(r"`((?:scripts|docs|tests|build|patches|src)/[\w./-]+)`", README))
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


def test_examples_ask_for_a_model_that_every_server_has():
    text = (ROOT / "docs" / "api.md").read_text()
    named = re.findall(r'\bmodel"?\s*[=:]\s*"([^"]+)"', text)
    assert len(named) == 5
    assert set(named) == {ADAPTER_NAME}

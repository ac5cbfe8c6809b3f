from __future__ import annotations

import re

import pytest
import yaml

from decideploy.pins import data_root

WORKFLOWS = sorted((data_root() / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_named_by_commit_and_rights_are_given_job_by_job(path):
    text = path.read_text("utf-8")
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name, _ in used)
    assert all(re.fullmatch(r"  # v[\d.]+", comment) for _, comment in used)
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    assert all(job["permissions"] == {"contents": "read"} for job in workflow["jobs"].values())


def test_every_command_of_a_workflow_is_one_of_ours():
    from decideploy.cli.parser import make_parser

    for path in WORKFLOWS:
        for words in re.findall(r"\.venv/bin/decideploy ([^\n]+)", path.read_text("utf-8")):
            parsed = make_parser().parse_args(words.replace('"$RECIPE"', "cpu").replace('"', "").split())
            assert parsed.command
        for script in re.findall(r"(scripts/\w+)", path.read_text("utf-8")):
            assert (data_root() / script).is_file()

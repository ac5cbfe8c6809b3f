"""What an engine must be set to before it answers, and what it tells of images."""

from types import SimpleNamespace

import pytest

from decideploy.errors import ConfigError
from decideploy.plan import Workload
from decideploy.plan.argv import media_domains
from decideploy.serve.engine_settings import image_faults, image_policy, process_faults


def engine(device: str, *, both_directions: bool) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(is_mm_prefix_lm=both_directions),
        device_config=SimpleNamespace(device_type=device),
    )


def test_images_that_attend_in_both_directions_need_a_gpu() -> None:
    (fault,) = image_faults(engine("cpu", both_directions=True))
    assert fault.code == "images-on-cpu"
    assert "--language-model-only" in fault.next_step
    assert not list(image_faults(engine("cpu", both_directions=False)))
    assert not list(image_faults(engine("cuda", both_directions=True)))


@pytest.mark.parametrize("hosts", [(), ("a.example.com", "b.example.com")])
def test_images_come_from_the_hosts_that_the_plan_allowed(hosts: tuple[str, ...]) -> None:
    told = SimpleNamespace(allowed_media_domains=list(media_domains(Workload(image_hosts=hosts))))
    policy = image_policy(told, 3)
    assert (policy.allowed_hosts, policy.max_count) == (hosts, 3)


def test_an_engine_that_was_told_no_hosts_allows_none_here() -> None:
    assert image_policy(SimpleNamespace(allowed_media_domains=None), 1).allowed_hosts == ()


def test_a_domain_that_is_no_host_name_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="no host name"):
        image_policy(SimpleNamespace(allowed_media_domains=["10.0.0.1"]), 1)


def test_one_process_answers_the_port() -> None:
    assert not list(process_faults(SimpleNamespace(_api_process_count=1)))
    (fault,) = process_faults(SimpleNamespace(_api_process_count=2))
    assert (fault.code, fault.where) == ("api-server-count", "vllm serve --api-server-count")

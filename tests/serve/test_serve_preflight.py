import pytest

from decideploy.errors import ConfigError
from decideploy.serve import preflight
from decideploy.serve.preflight import check_libraries


def test_a_library_of_the_system_that_is_missing_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = {"cpu": {"libc.so.6": "libc6", "libmissing-here.so.9": "libmissing9"}}
    monkeypatch.setattr(preflight, "_LIBRARIES", wanted)
    with pytest.raises(ConfigError, match="libmissing-here") as caught:
        check_libraries("cpu")
    assert caught.value.where == "libmissing-here.so.9"
    assert "libmissing9" in caught.value.next_step
    check_libraries("cuda")

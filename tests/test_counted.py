from decideploy.counted import counted


def test_one_is_not_many() -> None:
    assert [counted(count, "line") for count in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]

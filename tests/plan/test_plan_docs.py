import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_hardware_is_what_the_tables_and_the_plan_give() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_hardware_docs.py"))
    assert (ROOT / "docs" / "hardware.md").read_text("utf-8") == script["page"](), "run the script"


def test_a_figure_of_the_memory_is_drawn(tmp_path: Path) -> None:
    from decideploy.cli import main

    model = "autotrust/GEV-26B-Decide-NVFP4"
    assert main(["plan", model, "--hardware", "rtx4090", "--plot", str(tmp_path / "memory")]) == 0
    assert (tmp_path / "memory.png").stat().st_size > 5_000
    assert (tmp_path / "memory.svg").stat().st_size > 5_000

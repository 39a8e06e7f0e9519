"""What `tscpu lint` promises: file, line, remedy, and an exit code."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scripts.cli import application

CLEAN = (Path(__file__).parents[2] / "fixtures" / "clean.properties").read_text()


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(application(["lint"]), ["lint", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.properties"


def test_a_clean_file(file: Path) -> None:
    file.write_text(CLEAN)
    assert run(file) == (0, "", "0 errors, 0 warnings, 0 notes\n")


def test_an_error_ends_with_1_and_says_line_and_remedy(file: Path) -> None:
    file.write_text(CLEAN + "ipex_enable=yes\n")
    code, out, err = run(file)
    assert code == 1
    assert out == (f'{file}:8: error: ipex_enable=yes is false: only "true" is true\n'
                   "    remedy: ipex_enable=true or ipex_enable=false\n")
    assert err == "1 errors, 0 warnings, 0 notes\n"


def test_warnings_and_notes_do_not_fail(file: Path) -> None:
    file.write_text(CLEAN.replace("0.0.0.0:8080", "127.0.0.1:8080") + "async_logging=true\n")
    code, _, err = run(file)
    assert (code, err) == (0, "0 errors, 1 warnings, 1 notes\n")


def test_json(file: Path) -> None:
    file.write_text(CLEAN + "ipex_enable=yes\n")
    code, out, _ = run(file, "--json")
    assert code == 1
    assert json.loads(out) == [{"line": 8, "key": "ipex_enable", "severity": "error",
                                "message": 'ipex_enable=yes is false: only "true" is true',
                                "remedy": "ipex_enable=true or ipex_enable=false"}]


def test_archives_of_any_tool_are_compared(file: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "resnet.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": {"modelName": "resnet", "modelVersion": "2.0"}}))
    file.write_text(CLEAN + 'models={"resnet":{"1.0":{"minWorkers":1,"maxWorkers":1}}}\n')
    code, out, _ = run(file, "--model-store", tmp_path)
    assert code == 1 and "the archive of resnet has version 2.0" in out


def test_workers_are_counted_against_this_machine(file: Path) -> None:
    file.write_text(CLEAN + 'models={"a":{"1.0":{"minWorkers":9999,"maxWorkers":9999}}}\n')
    code, out, _ = run(file)
    assert code == 1 and "9999 workers × 1 threads are 9999, and this pod has a budget of" in out


def test_a_missing_file_ends_with_2(file: Path) -> None:
    code, _, err = run(file)
    assert code == 2 and "cannot read the file" in err


def test_help_shows_an_example() -> None:
    assert "Example: tscpu lint config.properties" in run("--help")[1]

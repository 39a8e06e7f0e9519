"""What `configs.properties` promises: a config.properties as Java and as TorchServe's Python part read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ts.model_server import load_properties

from configs.properties import entries, python_view

SAMPLE = r"""# a comment
! another
a=1
  b : 2
c 3
d
e= x y  BLANKS
f=one,\
   two,\
   three
g\=h=4
i=a\tb\u0041\q\\
j:=k
 k = = v
l=\
m=end
n\ o=5
p=trail\\
q=\
""".replace("BLANKS", "")
# as java.util.Properties of Java 17 reads it
JAVA = {"a": "1", "b": "2", "c": "3", "d": "", "e": "x y  ", "f": "one,two,three", "g=h": "4", "i": "a\tbAq\\",
        "j": "=k", "k": "= v", "l": "m=end", "n o": "5", "p": "trail\\", "q": ""}


def test_entries_are_what_java_reads() -> None:
    assert {entry.key: entry.value for entry in entries(SAMPLE)} == JAVA


def test_entries_know_their_lines_and_separators() -> None:
    found = {entry.key: (entry.line, entry.separator, len(entry.text), entry.continued) for entry in entries(SAMPLE)}
    assert found["a"] == (3, "=", 1, False)
    assert found["b"] == (4, ":", 1, False)
    assert found["c"] == (5, " ", 1, False)
    assert found["d"] == (6, "", 1, False)
    assert found["f"] == (8, "=", 3, True)
    assert found["g=h"] == (11, "=", 1, False)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_ends_of_any_system(ending: str) -> None:
    found = entries(ending.join(["a=1", "", "# c", "b=2"]))
    assert [(entry.line, entry.value) for entry in found] == [(1, "1"), (4, "2")]


def test_an_empty_file_has_no_entries() -> None:
    assert list(entries("")) == list(entries("\n \n#\n")) == []


def test_python_view_is_what_torchserves_launcher_reads(tmp_path: Path) -> None:
    (tmp_path / "config.properties").write_text(SAMPLE)
    assert python_view(SAMPLE) == load_properties(str(tmp_path / "config.properties"))
    assert python_view(SAMPLE)["f"] == "one,\\"
    assert "b" not in python_view(SAMPLE)

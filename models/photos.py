"""A folder of photos, with labels or without, in two parts: photos to learn from, and held-out ones to judge by.

Copies of one photo never stand on both sides: where nobody says otherwise, the content decides.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from handlers.errors import ArtifactError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
SHARE = 4  # one in so many photos of the user's own is held out
FEWEST = 8  # photos of either side
ENOUGH = 2 * SHARE * FEWEST  # photos for which the split by content leaves that many, but for very bad luck
LABELS_FILE = "labels.csv"
SPLITS = {"train": False, "held_out": True}
_UNLABELLED = "--labels none lets the teacher label all"
_SHOWN = 3  # of many mistakes of one kind

Label = float | int | None


@dataclass(frozen=True)
class Photo:
    """One file of the folder.

    Attributes:
        path: of the file.
        name: relative to the folder, with slashes, for messages.
        label: a score for scorers, a class's index (int) for recognizers; None without a label.
        held_out: never to be learned from.
        content: SHA-256 of the file's bytes, as hex digits.
    """

    path: Path
    name: str
    label: Label
    held_out: bool
    content: str


@dataclass(frozen=True)
class _Listed:
    """What is said about one photo; held_out is None where its content decides."""

    name: str
    label: Label = None
    held_out: bool | None = None


def read_photos(folder: Path, classes: Sequence[str], labels: str | None = None) -> list[Photo]:
    """The folder's photos, sorted by name. Hidden files and folders are left out, links to folders not followed.

    Args:
        classes: the teacher's labels by index; empty for a scorer, whose labels are numbers.
        labels: "none" ignores whatever labels (and splits) there are; "folders" takes the names of the subfolders;
            anything else is a CSV file, relative to the working directory or to the folder, with the columns file,
            label and perhaps split: photos that it does not list are left out. None finds out: labels.csv, else
            subfolders that are named after classes, else no labels.

    Raises:
        ArtifactError: too few photos, a label or a split that is wrong, or copies of one photo that contradict
            each other.
    """
    names = _names(folder)
    table = _table(folder, labels)
    if table is not None:
        listed = _from_table(table, folder, set(names), classes)
    elif labels == "folders" or (labels is None and _named_after_classes(names, classes)):
        listed = _from_folders(folder, names, classes)
    else:
        listed = [_Listed(name) for name in names]
    where = str(table or folder)
    contents = {one.name: _content(folder / one.name) for one in listed}
    sides = _sides(listed, contents, classes, where)
    photos = [Photo(folder / one.name, one.name, one.label, sides[contents[one.name]], contents[one.name])
              for one in sorted(listed, key=lambda one: one.name)]
    held_out = sum(photo.held_out for photo in photos)
    if min(held_out, len(photos) - held_out) < FEWEST:
        raise ArtifactError("there are too few photos", where=where,
                            why=f"{len(photos)} photos: {len(photos) - held_out} to learn from, {held_out} held out",
                            remedy=f"{FEWEST} or more of each: give {ENOUGH} photos or more (one in {SHARE} is held "
                                   f"out), or say which are held out in the column split of a {LABELS_FILE}")
    return photos


def digest(photos: Sequence[Photo]) -> str:
    """16 hex digits that change with any name, content, label or side, wherever the folder lies."""
    # JSON, because it shows where one value ends and the next begins, and tells 1 from 1.0
    lines = [json.dumps([photo.name, photo.content, photo.label, photo.held_out])
             for photo in sorted(photos, key=lambda photo: photo.name)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ArtifactError("the folder of photos is not there", where=str(folder),
                            why="it is a file" if folder.exists() else "",
                            remedy=f"give a folder with {', '.join(SUFFIXES)} files")
    paths = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    relative = [path.relative_to(folder) for path in paths]
    names = sorted(path.as_posix() for path in relative if not any(part.startswith(".") for part in path.parts))
    if not names:
        raise ArtifactError("there are no photos", where=str(folder), why=f"0 of {', '.join(SUFFIXES)}",
                            remedy=f"give a folder with {ENOUGH} or more")
    return names


def _table(folder: Path, labels: str | None) -> Path | None:
    """The CSV file, where there is one to be read."""
    if labels in ("none", "folders"):
        return None
    if labels is None:
        return folder / LABELS_FILE if (folder / LABELS_FILE).is_file() else None
    for path in (Path(labels), folder / labels):
        if path.is_file():
            return path
    raise ArtifactError("the file of labels is not there", where=f"--labels: {labels}",
                        why=f"neither {Path(labels).absolute()} nor {folder / labels} is a file",
                        remedy="none, folders, or a CSV file with the columns file and label")


# labels by folders


def _tops(names: Sequence[str]) -> list[str]:
    """Subfolders that hold photos, at whatever depth."""
    return sorted({name.split("/")[0] for name in names if "/" in name})


def _named_after_classes(names: Sequence[str], classes: Sequence[str]) -> bool:
    """Whether any subfolder is. One is enough: the others are mistakes then, and would lose their labels unnoticed."""
    return not set(_tops(names)).isdisjoint(classes)


def _from_folders(folder: Path, names: Sequence[str], classes: Sequence[str]) -> list[_Listed]:
    labels = {top: _label(top, classes) for top in _tops(names)}
    unknown = [top for top, label in labels.items() if label is None]
    if unknown:
        shown = unknown[:_SHOWN]
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        remedies = [_closest(top, classes) for top in shown] if classes else ["a number, such as 7.5"]
        raise ArtifactError("a subfolder is named after no class of the teacher" if classes else
                            "a subfolder's name is no score", where=str(folder),
                            why=f"{', '.join(map(repr, shown))}{more}, of {len(labels)} subfolders",
                            remedy="; ".join([*dict.fromkeys(remedies), _UNLABELLED]))
    loose = [name for name in names if "/" not in name]
    if loose:
        raise ArtifactError("a photo stands in no subfolder that would be its label", where=str(folder),
                            why=f"{loose[0]!r}" + (f" and {len(loose) - 1} more" if len(loose) > 1 else ""),
                            remedy=f"all photos have a label, or none has: move it to a subfolder; {_UNLABELLED}")
    return [_Listed(name, labels[name.split("/")[0]]) for name in names]


def _label(text: str, classes: Sequence[str]) -> Label:
    """What a text stands for, or None: a finite number for scorers, a class's name for recognizers."""
    if classes:
        # a name that two classes share says nothing
        return classes.index(text) if classes.count(text) == 1 else None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None  # float() takes 2024_05 for 202405


def _closest(text: str, classes: Sequence[str]) -> str:
    """A remedy for a name that is no class's."""
    same = [str(index) for index, name in enumerate(classes) if name == text]
    if same:
        return f"{text!r} is the name of classes {' and '.join(same)}: give the index, in a CSV file"
    by_lower = {name.lower(): name for name in classes}
    near = get_close_matches(text.lower(), by_lower, 1)
    if near:
        return f"{by_lower[near[0]]!r} instead of {text!r}, perhaps"
    return f"one of the teacher's {len(classes)} classes: {', '.join(map(repr, classes[:_SHOWN]))}" \
        + (", …" if len(classes) > _SHOWN else "")


# labels by a CSV file


def _from_table(path: Path, folder: Path, names: set[str], classes: Sequence[str]) -> list[_Listed]:
    lines: dict[str, int] = {}  # of each photo
    listed, empty = [], 0
    for line, row in _rows(path):
        name = _file(path, line, row["file"], folder, names)
        if name in lines:
            raise _wrong("a photo is listed twice", path, line, "file", row["file"],
                         f"one line a photo: it is in line {lines[name]} too")
        lines[name] = line
        split = row.get("split", "")
        if split and split not in SPLITS:
            raise _wrong("there is no such split", path, line, "split", split,
                         f"{' or '.join(SPLITS)}, or nothing: its content decides then")
        label = _table_label(path, line, row["label"], classes) if row["label"] else None
        if label is None:
            empty = empty or line
        listed.append(_Listed(name, label, SPLITS.get(split)))
    if empty and any(one.label is not None for one in listed):
        raise _wrong("a photo has no label", path, empty, "label", "",
                     f"all photos have a label, or none has: leave out this line; {_UNLABELLED}")
    return listed


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Line numbers and values by column, without the space around them. Spreadsheets leave empty lines: left out."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            columns = [name.strip() for name in next(reader, [])]
            read = [(reader.line_num, [value.strip() for value in values]) for values in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArtifactError("cannot read the labels", where=str(path), why=str(error),
                            remedy="a CSV file in UTF-8 with the columns file and label") from error
    for column, needed in (("file", True), ("label", True), ("split", False)):
        count = columns.count(column)
        if count > 1 or (needed and count == 0):
            raise ArtifactError(f"the labels have {count or 'no'} column{'s' if count else ''} {column}",
                                where=f"{path}: line 1: {column}",
                                why=f"found {', '.join(map(repr, columns)) or 'none'}",
                                remedy="the first line is file,label or file,label,split, with commas")
    for line, values in read:
        beyond = [value for value in values[len(columns):] if value]
        if beyond:
            raise _wrong("a line has more values than there are columns", path, line, columns[-1], beyond[0],
                         'a value with a comma in it stands in quotes, such as "bread, white"')
    return [(line, dict.fromkeys(columns, "") | dict(zip(columns, values, strict=False)))
            for line, values in read if any(values)]


def _file(path: Path, line: int, text: str, folder: Path, names: set[str]) -> str:
    # without resolving links: a link in the folder to a photo elsewhere is a photo of the folder
    name = Path(os.path.relpath(folder / text, folder)).as_posix()
    if name == ".." or name.startswith("../"):
        raise _wrong("a photo lies outside of the folder", path, line, "file", text, f"a path relative to {folder}")
    if name not in names:
        raise _wrong("there is no such photo", path, line, "file", text,
                     f"a file with {', '.join(SUFFIXES)} that is not hidden, relative to {folder}")
    return name


def _table_label(path: Path, line: int, text: str, classes: Sequence[str]) -> float | int:
    label = _label(text, classes)
    if label is not None:
        return label
    if not classes:
        raise _wrong("a label is no score", path, line, "label", text, "a finite number, such as 7.5")
    if text.isdecimal() and text not in classes:
        if int(text) < len(classes):
            return int(text)
        raise _wrong("there is no such class", path, line, "label", text, f"an index from 0 to {len(classes) - 1}")
    raise _wrong("there is no such class", path, line, "label", text, _closest(text, classes))


def _wrong(what: str, path: Path, line: int, column: str, value: str, remedy: str) -> ArtifactError:
    return ArtifactError(what, where=f"{path}: line {line}: {column}", why=f"found {value!r}", remedy=remedy)


# the split


def _in_words(label: Label, classes: Sequence[str]) -> str:
    return repr(classes[label]) if isinstance(label, int) else str(label)


def _content(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ArtifactError("a photo cannot be read", where=str(path), why=str(error)) from error


def _sides(listed: Sequence[_Listed], contents: Mapping[str, str], classes: Sequence[str], where: str
           ) -> dict[str, bool]:
    """Whether a content is held out. What is said of one copy holds for those of which nothing is said.

    Raises:
        ArtifactError: copies of one photo have different labels or stand on both sides.
    """
    first: dict[str, _Listed] = {}
    said: dict[str, _Listed] = {}
    for one in listed:
        content = contents[one.name]
        other = first.setdefault(content, one)
        if other.label != one.label:
            raise ArtifactError("copies of one photo have different labels", where=where,
                                why=", ".join(f"{copy.name!r} has {_in_words(copy.label, classes)}"
                                              for copy in (other, one)),
                                remedy="keep the one whose label is right")
        if one.held_out is None:
            continue
        other = said.setdefault(content, one)
        if other.held_out != one.held_out:
            raise ArtifactError("copies of one photo are both learned from and held out", where=where,
                                why=f"{other.name!r} and {one.name!r} have the same content",
                                remedy="keep one of them, or give both the same split")
    by_content = {content: bytes.fromhex(content)[0] % SHARE == 0 for content in first}
    return by_content | {content: bool(one.held_out) for content, one in said.items()}

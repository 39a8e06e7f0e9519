"""A folder of photos: which they are, what they are labelled with, and which of them are held out."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from handlers.errors import ArtifactError
from models import photos
from models.photos import ENOUGH, FEWEST, SHARE, Photo, digest, read_photos

ROOT = Path(__file__).resolve().parents[3]
CLASSES = ("bread", "burger", "pizza", "bread, white")
COUNT = 60


@cache
def png(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write(folder: Path, names: Sequence[str]) -> None:
    """A different tiny PNG for every name, whatever its suffix."""
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(seed))


def write_table(folder: Path, *lines: str, header: str = "file,label", name: str = photos.LABELS_FILE) -> Path:
    path = folder / name
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def listed(label: str = "pizza") -> list[str]:
    return [f"{name},{label}" for name in NAMES]


def error_of(folder: Path, classes: Sequence[str] = CLASSES, labels: str | None = None) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        read_photos(folder, classes, labels)
    return caught.value


def labels_of(found: Sequence[Photo]) -> dict[str, float | int | None]:
    return {photo.name: photo.label for photo in found}


def held_out(found: Sequence[Photo]) -> set[str]:
    return {photo.name for photo in found if photo.held_out}


NAMES = [f"{index:02}.png" for index in range(COUNT)]


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Photos with nothing that could be a label."""
    folder = tmp_path / "photos"
    write(folder, NAMES)
    return folder


def in_folders(folder: Path, *tops: str) -> Path:
    write(folder, [f"{tops[index % len(tops)]}/{index:02}.png" for index in range(COUNT)])
    return folder


# photos


def test_all_photos_at_whatever_depth_sorted_by_name(tmp_path: Path) -> None:
    names = [f"{place}{index:02}{suffix}" for index in range(16) for place, suffix in
             (("", ".png"), ("a/", ".JPG"), ("a/b/", ".jpeg"), ("a-", ".WebP"))]
    write(tmp_path, names)
    (tmp_path / "notes.txt").write_text("not a photo")
    (tmp_path / "a.png").mkdir()
    found = read_photos(tmp_path, ())
    assert [photo.name for photo in found] == sorted(names)
    assert all(photo.path == tmp_path / photo.name and photo.label is None for photo in found)


@pytest.mark.parametrize("hidden", [".00.png", ".thumbnails/00.png", "a/.b/c/00.png", "a/._00.png"])
def test_hidden_ones_are_left_out(flat: Path, hidden: str) -> None:
    write(flat, [hidden])
    assert [photo.name for photo in read_photos(flat, ())] == NAMES


def test_the_folder_itself_may_be_hidden(tmp_path: Path) -> None:
    write(tmp_path / ".cache" / "photos", NAMES)
    assert len(read_photos(tmp_path / ".cache" / "photos", ())) == COUNT


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    error = error_of(tmp_path / "nowhere")
    assert error.what == "the folder of photos is not there" and error.where == str(tmp_path / "nowhere")
    assert ".jpg, .jpeg, .png, .webp" in error.remedy


def test_a_file_instead_of_a_folder(flat: Path) -> None:
    error = error_of(flat / "00.png")
    assert error.what == "the folder of photos is not there" and error.why == "it is a file"


def test_a_folder_without_photos(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("soon")
    error = error_of(tmp_path)
    assert error.what == "there are no photos" and error.where == str(tmp_path)
    assert error.why == "0 of .jpg, .jpeg, .png, .webp" and str(ENOUGH) in error.remedy


def test_a_photo_that_cannot_be_read_is_named(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "07.png":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    error = error_of(flat)
    assert error.what == "a photo cannot be read" and error.where == str(flat / "07.png")
    assert "Permission denied" in error.why


# the split


def test_the_content_decides_which_are_held_out(flat: Path) -> None:
    for photo in read_photos(flat, ()):
        raw = hashlib.sha256(photo.path.read_bytes())
        assert photo.content == raw.hexdigest() and photo.held_out == (raw.digest()[0] % SHARE == 0)


def test_a_models_own_photos_are_split_the_same_way() -> None:
    from models import samples  # here, since it takes seconds to import

    assert (SHARE, photos.SUFFIXES) == (samples.OWN_SHARE, samples._SUFFIXES)


def test_no_torch_is_needed() -> None:
    code = "import models.photos, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_copies_stand_on_the_same_side(flat: Path) -> None:
    for name in NAMES:
        shutil.copy(flat / name, flat / f"copy of {name}")
    kept = held_out(read_photos(flat, ()))
    assert {name for name in NAMES if name in kept} == {name for name in NAMES if f"copy of {name}" in kept}


@pytest.mark.parametrize("kept", [FEWEST - 1, COUNT - FEWEST + 1])
def test_too_few_of_either_side(flat: Path, kept: int) -> None:
    table = write_table(flat, *(f"{name},pizza,{'held_out' if index < kept else 'train'}"
                                for index, name in enumerate(NAMES)), header="file,label,split")
    error = error_of(flat)
    assert error.what == "there are too few photos" and error.where == str(table)
    assert error.why == f"{COUNT} photos: {COUNT - kept} to learn from, {kept} held out"
    assert error.remedy.startswith(f"{FEWEST} or more of each: give {ENOUGH} photos") and "split" in error.remedy


@pytest.mark.parametrize("kept", [FEWEST, COUNT - FEWEST])
def test_just_enough_of_either_side(flat: Path, kept: int) -> None:
    write_table(flat, *(f"{name},pizza,{'held_out' if index < kept else 'train'}"
                        for index, name in enumerate(NAMES)), header="file,label,split")
    assert held_out(read_photos(flat, CLASSES)) == set(NAMES[:kept])


def test_too_few_without_a_table(tmp_path: Path) -> None:
    write(tmp_path, NAMES[:3])
    error = error_of(tmp_path)
    assert error.what == "there are too few photos" and error.where == str(tmp_path)
    assert error.why.startswith("3 photos: ")


def test_a_table_that_lists_nothing(flat: Path) -> None:
    write_table(flat)
    assert error_of(flat).why == "0 photos: 0 to learn from, 0 held out"


# which labels


@pytest.mark.parametrize("classes", [(), CLASSES], ids=["scorer", "recognizer"])
def test_nothing_to_be_found_out(flat: Path, classes: Sequence[str]) -> None:
    assert set(labels_of(read_photos(flat, classes)).values()) == {None}


def test_subfolders_named_after_classes(tmp_path: Path) -> None:
    in_folders(tmp_path, "bread", "pizza/deep")
    found = read_photos(tmp_path, CLASSES)
    assert {(photo.name.split("/")[0], photo.label) for photo in found} == {("bread", 0), ("pizza", 2)}


def test_subfolders_of_other_names_are_no_labels(tmp_path: Path) -> None:
    in_folders(tmp_path, "monday", "tuesday/pizza")
    assert set(labels_of(read_photos(tmp_path, CLASSES)).values()) == {None}


def test_a_scorers_subfolders_are_no_labels_unless_that_is_said(tmp_path: Path) -> None:
    in_folders(tmp_path, "1", "2.5")
    assert set(labels_of(read_photos(tmp_path, ())).values()) == {None}


def test_subfolders_without_photos_do_not_matter(tmp_path: Path) -> None:
    in_folders(tmp_path, "bread", "pizza")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("not a photo")
    assert set(labels_of(read_photos(tmp_path, CLASSES)).values()) == {0, 2}


def test_a_table_goes_before_subfolders(tmp_path: Path) -> None:
    in_folders(tmp_path, "bread", "pizza")
    write_table(tmp_path, *(f"{path.relative_to(tmp_path)},burger" for path in tmp_path.rglob("*.png")))
    assert set(labels_of(read_photos(tmp_path, CLASSES)).values()) == {1}


def test_none_ignores_subfolders(tmp_path: Path) -> None:
    in_folders(tmp_path, "bread", "piza")
    assert set(labels_of(read_photos(tmp_path, CLASSES, "none")).values()) == {None}


def test_none_ignores_a_table(flat: Path) -> None:
    write_table(flat, "nowhere.png,nothing")
    assert labels_of(read_photos(flat, CLASSES, "none")) == dict.fromkeys(NAMES)


def test_folders_ignores_a_table(tmp_path: Path) -> None:
    in_folders(tmp_path, "bread", "pizza")
    write_table(tmp_path, "nowhere.png,nothing")
    assert set(labels_of(read_photos(tmp_path, CLASSES, "folders")).values()) == {0, 2}


# labels by folders


@pytest.mark.parametrize("labels", [None, "folders"])
def test_a_subfolder_that_is_no_class(tmp_path: Path, labels: str | None) -> None:
    in_folders(tmp_path, "bread", "Piza")
    error = error_of(tmp_path, labels=labels)
    assert error.what == "a subfolder is named after no class of the teacher" and error.where == str(tmp_path)
    assert error.why == "'Piza', of 2 subfolders"
    assert error.remedy == "'pizza' instead of 'Piza', perhaps; --labels none lets the teacher label all"


def test_the_first_of_many_that_are_no_classes(tmp_path: Path) -> None:
    in_folders(tmp_path, "bread", "1", "2", "3", "4", "5")
    error = error_of(tmp_path)
    assert error.why == "'1', '2', '3' and 2 more, of 6 subfolders"
    assert error.remedy == ("one of the teacher's 4 classes: 'bread', 'burger', 'pizza', …; "
                            "--labels none lets the teacher label all")


def test_folders_that_are_no_classes_at_all_when_they_are_said_to_be(tmp_path: Path) -> None:
    in_folders(tmp_path, "monday", "tuesday")
    assert error_of(tmp_path, labels="folders").why == "'monday', 'tuesday', of 2 subfolders"


@pytest.mark.parametrize("labels", [None, "folders"])
def test_photos_beside_the_subfolders(tmp_path: Path, labels: str | None) -> None:
    in_folders(tmp_path, "bread", "pizza")
    write(tmp_path, ["loose.png", "other.png"])
    error = error_of(tmp_path, labels=labels)
    assert error.what == "a photo stands in no subfolder that would be its label"
    assert error.why == "'loose.png' and 1 more" and "--labels none" in error.remedy


def test_no_subfolders_where_they_are_said_to_be_labels(flat: Path) -> None:
    assert error_of(flat, labels="folders").why == f"'00.png' and {COUNT - 1} more"


def test_a_class_name_that_two_classes_share(tmp_path: Path) -> None:
    in_folders(tmp_path, "bread", "crane")
    error = error_of(tmp_path, ("crane", "bread", "crane"))
    assert error.why == "'crane', of 2 subfolders"
    assert error.remedy.startswith("'crane' is the name of classes 0 and 2: give the index, in a CSV file")


def test_subfolders_named_by_scores(tmp_path: Path) -> None:
    in_folders(tmp_path, "1", "2.5", "-3")
    found = set(labels_of(read_photos(tmp_path, (), "folders")).values())
    assert found == {1.0, 2.5, -3.0} and all(isinstance(label, float) for label in found)


@pytest.mark.parametrize("name", ["good", "nan", "inf", "2024_05", "7,5"])
def test_a_subfolder_that_is_no_score(tmp_path: Path, name: str) -> None:
    in_folders(tmp_path, "1", name)
    error = error_of(tmp_path, (), "folders")
    assert error.what == "a subfolder's name is no score" and error.why == f"{name!r}, of 2 subfolders"
    assert error.remedy == "a number, such as 7.5; --labels none lets the teacher label all"


# labels by a CSV file


def test_a_table_labels_what_it_lists(flat: Path) -> None:
    write_table(flat, *(f"{name},{CLASSES[index % 3]}" for index, name in enumerate(NAMES[:50])))
    found = read_photos(flat, CLASSES)
    assert labels_of(found) == {name: index % 3 for index, name in enumerate(NAMES[:50])}
    assert all(photo.path == flat / photo.name for photo in found)


def test_its_order_does_not_matter(flat: Path) -> None:
    write_table(flat, *reversed(listed()))
    assert [photo.name for photo in read_photos(flat, CLASSES)] == NAMES


def test_it_is_split_by_content_where_it_has_no_split(flat: Path) -> None:
    by_content = held_out(read_photos(flat, CLASSES))
    write_table(flat, *listed())
    assert held_out(read_photos(flat, CLASSES)) == by_content


def test_scores_of_a_table(flat: Path) -> None:
    write_table(flat, *(f"{name},{index / 4}" for index, name in enumerate(NAMES[1:])), f"{NAMES[0]},-1e1")
    found = labels_of(read_photos(flat, ()))
    assert found == {name: index / 4 for index, name in enumerate(NAMES[1:])} | {NAMES[0]: -10.0}


def test_a_whole_number_is_a_score_too(flat: Path) -> None:
    write_table(flat, *listed("7"))
    assert all(isinstance(label, float) for label in labels_of(read_photos(flat, ())).values())


@pytest.mark.parametrize(("text", "index"), [
    ("bread", 0), ("2", 2), ("0", 0), ('"bread, white"', 3), (" pizza ", 2), ("02", 2)])
def test_a_class_by_name_or_index(flat: Path, text: str, index: int) -> None:
    write_table(flat, *listed(text))
    assert set(labels_of(read_photos(flat, CLASSES)).values()) == {index}


def test_a_number_that_is_a_class_name_is_no_index(flat: Path) -> None:
    write_table(flat, *listed("1"))
    assert set(labels_of(read_photos(flat, ("1", "0"))).values()) == {0}


@pytest.mark.parametrize("where", ["folder", "working directory", "absolute"])
def test_a_table_by_its_path(flat: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = flat.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    path = write_table(flat if where == "folder" else elsewhere, *listed(), name="mine.csv")
    found = read_photos(flat, CLASSES, str(path) if where == "absolute" else "mine.csv")
    assert set(labels_of(found).values()) == {2}


def test_the_working_directory_goes_before_the_folder(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(flat.parent)
    write_table(flat, *listed("bread"), name="mine.csv")
    write_table(flat.parent, *listed("pizza"), name="mine.csv")
    assert set(labels_of(read_photos(flat, CLASSES, "mine.csv")).values()) == {2}


def test_a_table_that_is_not_there(flat: Path) -> None:
    error = error_of(flat, labels="mine.csv")
    assert error.what == "the file of labels is not there" and error.where == "--labels: mine.csv"
    assert str(flat / "mine.csv") in error.why and str(Path.cwd() / "mine.csv") in error.why
    assert error.remedy == "none, folders, or a CSV file with the columns file and label"


def test_a_relative_folder(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(flat.parent)
    write_table(flat, *listed())
    assert labels_of(read_photos(Path("photos"), CLASSES)) == dict.fromkeys(NAMES, 2)


def test_columns_in_another_order_and_more_of_them(flat: Path) -> None:
    write_table(flat, *(f"me,pizza,{name},2024" for name in NAMES), header="by, label ,file,year")
    assert labels_of(read_photos(flat, CLASSES)) == dict.fromkeys(NAMES, 2)


@pytest.mark.parametrize(("encoding", "newline"), [("utf-8-sig", "\n"), ("utf-8", "\r\n")])
def test_a_table_as_spreadsheets_write_it(flat: Path, encoding: str, newline: str) -> None:
    lines = ["file,label,", *(f"{line}," for line in listed()), "", ",,"]
    (flat / "labels.csv").write_text(newline.join(lines), encoding=encoding, newline="")
    assert labels_of(read_photos(flat, CLASSES)) == dict.fromkeys(NAMES, 2)


@pytest.mark.parametrize(("header", "what"), [
    ("file,name", "the labels have no column label"), ("path,label", "the labels have no column file"),
    ("file;label", "the labels have no column file"), ("", "the labels have no column file"),
    ("file,label,label", "the labels have 2 columns label"),
    ("file,label,split,split", "the labels have 2 columns split"),
])
def test_columns_that_are_missing_or_twice_there(flat: Path, header: str, what: str) -> None:
    table = write_table(flat, header=header)
    error = error_of(flat)
    assert error.what == what and error.where == f"{table}: line 1: {what.split()[-1]}"
    assert error.why == f"found {', '.join(map(repr, header.split(','))) if header else 'none'}"
    assert "file,label or file,label,split" in error.remedy


def test_a_file_that_is_no_text(flat: Path) -> None:
    shutil.copy(flat / "00.png", flat / "labels.csv")
    error = error_of(flat)
    assert error.what == "cannot read the labels" and error.where == str(flat / "labels.csv")
    assert "UTF-8" in error.remedy


BAD_LINES = {
    "a class that is not there": ("02.png,piza", CLASSES, "there is no such class", "label", "piza",
                                  "'pizza' instead of 'piza', perhaps"),
    "a class like no other": ("02.png,xyz", CLASSES, "there is no such class", "label", "xyz",
                              "one of the teacher's 4 classes: 'bread', 'burger', 'pizza', …"),
    "an index beyond the classes": ("02.png,4", CLASSES, "there is no such class", "label", "4",
                                    "an index from 0 to 3"),
    "an index below the classes": ("02.png,-1", CLASSES, "there is no such class", "label", "-1",
                                   "one of the teacher's 4 classes"),
    "a name of two classes": ("02.png,crane", ("pizza", "crane", "crane"), "there is no such class", "label", "crane",
                              "'crane' is the name of classes 1 and 2: give the index"),
    "no photo": ("nowhere.png,pizza", CLASSES, "there is no such photo", "file", "nowhere.png", ".jpg, .jpeg, .png"),
    "no suffix": ("02,pizza", CLASSES, "there is no such photo", "file", "02", ".jpg, .jpeg, .png"),
    "no file": (",pizza", CLASSES, "there is no such photo", "file", "", ".jpg, .jpeg, .png"),
    "a hidden photo": (".02.png,pizza", CLASSES, "there is no such photo", "file", ".02.png", "not hidden"),
    "a photo above the folder": ("../02.png,pizza", CLASSES, "a photo lies outside of the folder", "file",
                                 "../02.png", "a path relative to "),
    "a photo beside the folder": ("/02.png,pizza", CLASSES, "a photo lies outside of the folder", "file", "/02.png",
                                  "a path relative to "),
    "a photo that is listed twice": ("00.png,pizza", CLASSES, "a photo is listed twice", "file", "00.png", "line 2"),
    "the same by another path": ("a/../00.png,pizza", CLASSES, "a photo is listed twice", "file", "a/../00.png",
                                 "line 2"),
    "an empty label": ("02.png,", CLASSES, "a photo has no label", "label", "",
                       "all photos have a label, or none has: leave out this line; --labels none"),
    "a line that ends early": ("02.png", CLASSES, "a photo has no label", "label", "", "leave out this line"),
    "a comma without quotes": ("02.png,bread, white", CLASSES, "a line has more values than there are columns",
                               "label", "white", "in quotes"),
}


@pytest.mark.parametrize(("line", "classes", "what", "column", "value", "remedy"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_that_is_wrong(flat: Path, line: str, classes: Sequence[str], what: str, column: str, value: str,
                              remedy: str) -> None:
    write(flat, [".02.png", "../02.png"])
    table = write_table(flat, "00.png,pizza", "", line, "03.png,pizza")
    error = error_of(flat, classes)
    assert error.what == what and error.where == f"{table}: line 4: {column}"
    assert error.why == f"found {value!r}" and remedy in error.remedy


@pytest.mark.parametrize("label", ["good", "nan", "-inf", "1e999", "1_0", '"7,5"'])
def test_a_label_that_is_no_score(flat: Path, label: str) -> None:
    table = write_table(flat, "00.png,1", f"01.png,{label}")
    error = error_of(flat, ())
    assert error.what == "a label is no score" and error.where == f"{table}: line 3: label"
    assert error.why == "found {!r}".format(label.strip('"')) and error.remedy == "a finite number, such as 7.5"


def test_an_absolute_path_into_the_folder(flat: Path) -> None:
    write_table(flat, *(f"{flat / name},pizza" for name in NAMES))
    assert labels_of(read_photos(flat, CLASSES)) == dict.fromkeys(NAMES, 2)


def test_a_link_to_a_photo_elsewhere_is_a_photo_of_the_folder(flat: Path) -> None:
    (flat / "00.png").rename(flat.parent / "moved.png")
    (flat / "00.png").symlink_to(flat.parent / "moved.png")
    write_table(flat, *listed())
    assert labels_of(read_photos(flat, CLASSES)) == dict.fromkeys(NAMES, 2)


def test_a_table_without_any_label_chooses_photos(flat: Path) -> None:
    write_table(flat, *(f"{name},," + ("held_out" if index < 8 else "train") for index, name in enumerate(NAMES[:50])),
                header="file,label,split")
    found = read_photos(flat, CLASSES)
    assert labels_of(found) == dict.fromkeys(NAMES[:50]) and held_out(found) == set(NAMES[:8])


# its split


def test_lines_without_a_split_are_split_by_content(flat: Path) -> None:
    by_content = held_out(read_photos(flat, CLASSES))
    splits = ["held_out" if name not in by_content else "train" for name in NAMES[:20]] + [""] * (COUNT - 20)
    write_table(flat, *(f"{name},pizza,{split}" for name, split in zip(NAMES, splits, strict=True)),
                header="file,label,split")
    assert held_out(read_photos(flat, CLASSES)) == (set(NAMES[:20]) ^ by_content)


@pytest.mark.parametrize("split", ["test", "Train", "heldout"])
def test_a_split_that_is_not_known(flat: Path, split: str) -> None:
    table = write_table(flat, "00.png,pizza,train", f"01.png,pizza,{split}", header="file,label,split")
    error = error_of(flat)
    assert error.what == "there is no such split" and error.where == f"{table}: line 3: split"
    assert error.why == f"found {split!r}" and error.remedy.startswith("train or held_out, or nothing")


def test_copies_on_both_sides(flat: Path) -> None:
    shutil.copy(flat / "05.png", flat / "copy.png")
    table = write_table(flat, "05.png,pizza,train", "06.png,pizza,train", "copy.png,pizza,held_out",
                        header="file,label,split")
    error = error_of(flat)
    assert error.what == "copies of one photo are both learned from and held out" and error.where == str(table)
    assert error.why == "'05.png' and 'copy.png' have the same content" and "the same split" in error.remedy


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("first", [True, False], ids=["after it", "before it"])
def test_what_is_said_of_one_copy_holds_for_the_other(flat: Path, split: str, first: bool) -> None:
    for name in NAMES:
        shutil.copy(flat / name, flat / f"copy {name}")
    said = [f"{name},pizza,{split if index < 20 else ''}" for index, name in enumerate(NAMES)]
    copies = [f"copy {name},pizza," for name in NAMES]
    write_table(flat, *(said + copies if first else copies + said), header="file,label,split")
    kept = held_out(read_photos(flat, CLASSES))
    for names in (NAMES[:20], [f"copy {name}" for name in NAMES[:20]]):
        assert (set(names) & kept) == (set(names) if split == "held_out" else set())


# copies with other labels


def test_copies_with_different_labels_in_a_table(flat: Path) -> None:
    shutil.copy(flat / "05.png", flat / "copy.png")
    table = write_table(flat, "05.png,7", "06.png,7", "copy.png,7.5")
    error = error_of(flat, ())
    assert error.what == "copies of one photo have different labels" and error.where == str(table)
    assert error.why == "'05.png' has 7.0, 'copy.png' has 7.5" and error.remedy == "keep the one whose label is right"


def test_copies_with_different_labels_in_folders(tmp_path: Path) -> None:
    in_folders(tmp_path, "bread", "pizza")
    shutil.copy(tmp_path / "bread" / "00.png", tmp_path / "pizza" / "copy.png")
    error = error_of(tmp_path)
    assert error.what == "copies of one photo have different labels" and error.where == str(tmp_path)
    assert error.why == "'bread/00.png' has 'bread', 'pizza/copy.png' has 'pizza'"


def test_copies_with_the_same_label(flat: Path) -> None:
    shutil.copy(flat / "05.png", flat / "copy.png")
    write_table(flat, *listed("7"), "copy.png,7.0")
    assert len(read_photos(flat, ())) == COUNT + 1


# the digest


def test_a_digest_does_not_depend_on_where_the_folder_lies(flat: Path, tmp_path: Path) -> None:
    shutil.copytree(flat, tmp_path / "elsewhere" / "other")
    first, second = digest(read_photos(flat, ())), digest(read_photos(tmp_path / "elsewhere" / "other", ()))
    assert first == second and len(first) == 16 and int(first, 16) >= 0


def test_nor_on_the_order(flat: Path) -> None:
    found = read_photos(flat, ())
    assert digest(found[::-1]) == digest(found)


def test_nor_does_it_read_the_photos_again(flat: Path) -> None:
    found = read_photos(flat, ())
    shutil.rmtree(flat)
    assert digest(found)


@pytest.mark.parametrize("change", [{"name": "other.png"}, {"content": "00"}, {"label": 1}, {"label": 0.0},
                                    {"label": None}, {"held_out": True}], ids=str)
def test_a_digest_depends_on_everything_else(change: dict[str, Any]) -> None:
    one, other = Photo(Path("a.png"), "a.png", 0, False, "ff"), Photo(Path("b.png"), "b.png", 0, False, "fe")
    assert digest([dataclasses.replace(one, **change), other]) != digest([one, other])


def test_and_on_every_photo(flat: Path) -> None:
    found = read_photos(flat, ())
    assert digest(found[1:]) != digest(found)


def test_each_photo_is_read_once(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, paths = Path.read_bytes, []

    def count(path: Path) -> bytes:
        paths.append(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", count)
    digest(read_photos(flat, ()))
    assert sorted(paths) == [flat / name for name in NAMES]

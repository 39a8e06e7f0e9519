"""model.yaml, validated: what a model is, before it is built.

A model is a folder with this file. Paths in it are relative to the folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from handlers.artifact import AUTO
from handlers.errors import ArtifactError
from handlers.runtimes import RUNTIMES
from handlers.transforms import InputSpec

FILE = "model.yaml"
Level = Annotated[int, Field(ge=0, le=255)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Triple = tuple[Finite, Finite, Finite]


class Section(BaseModel):
    """Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NetworkSection(Section):
    """Where the network comes from: an architecture of timm with its weights, or a TorchScript file."""

    architecture: str | None = Field(None, description="a timm architecture, such as tf_efficientnet_lite0")
    file: Path | None = Field(None, description="a TorchScript file, instead of an architecture")
    weights: str | None = Field(None, description="a .safetensors or .pth state dict, or package:NAME for the one "
                                                  ".pth file that an installed package carries")
    weights_by: Literal["name", "order"] = Field("name", description="order: the state dict has other names, but the "
                                                                     "same shapes in the same order")
    classes: int = Field(1000, ge=1)
    features: Literal["logits", "statistics", "score"] = Field(
        "logits", description="statistics: channel means and deviations of every stage, for a head; score: one number "
                              "from them, by the network's own linear layer")
    stages: int | None = Field(None, ge=1, description="statistics of the first stages only; later ones are left out")

    @model_validator(mode="after")
    def _one_source(self) -> NetworkSection:
        if (self.architecture is None) == (self.file is None):
            raise ValueError("give either architecture or file")
        if self.architecture is not None and self.weights is None:
            raise ValueError("an architecture needs weights: a file, or package:NAME")
        if self.file is not None and (self.weights is not None or self.features != "logits"):
            raise ValueError("a TorchScript file brings its own weights and outputs: leave out weights and features")
        if self.stages is not None and self.features == "logits":
            raise ValueError("logits come from all stages: leave out stages, or set features")
        return self


class HeadSection(Section):
    """A regression head: fitted by the folder's own code, or a file that SVRHead.save wrote."""

    train: Path | None = Field(None, description="a Python file with fit(network, preprocess, cache, progress)")
    file: Path | None = Field(None, description="a .safetensors file written by handlers.svr.SVRHead.save")

    @model_validator(mode="after")
    def _one_source(self) -> HeadSection:
        if (self.train is None) == (self.file is None):
            raise ValueError("give either train or file")
        return self


class InputSection(Section):
    """How a photo becomes the network's input."""

    size: int = Field(224, ge=8, le=4096)
    resize: int | None = Field(None, ge=8, le=8192, description="shorter side before the centre crop; size / 0.875")
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    mean: Triple = (0.485, 0.456, 0.406)
    std: Triple = (0.229, 0.224, 0.225)
    exif: bool = True
    background: tuple[Level, Level, Level] = (255, 255, 255)
    max_pixels: int = Field(50_000_000, ge=1)
    decode: Literal["exact", "fast"] = Field("exact", description="fast: large JPEGs are decoded at half, a quarter or "
                                                                  "an eighth of their size; other pixels")

    @field_validator("std")
    @classmethod
    def _positive(cls, std: Triple) -> Triple:
        if min(std) <= 0:
            raise ValueError("every std must be above 0")
        return std

    @model_validator(mode="after")
    def _crop_fits(self) -> InputSection:
        if self.resize is not None and self.resize < self.size:
            raise ValueError(f"resize {self.resize} is smaller than size {self.size}, which is cropped from it")
        return self

    def resolved(self) -> InputSpec:
        """As handlers read it."""
        data = self.model_dump()
        data["resize"] = self.resize or round(self.size / 0.875)
        return InputSpec.from_dict(data)


class OutputSection(Section):
    top_k: int = Field(5, ge=1)


class BatchSection(Section):
    """The largest batch, and how long a worker waits for it to fill.

    One thread gains almost nothing from a batch at fp32, so by default there is none to wait for.
    """

    size: int = Field(1, ge=1, le=256)
    max_delay_ms: int = Field(1, ge=1, le=10_000)


class Tolerance(Section):
    """How far a built network may be from the eager fp32 network, on photos that nothing was calibrated on."""

    fp32: float = Field(1e-4, gt=0, description="largest difference of an fp32 file, relative to the largest output")
    confident: float = Field(0.99, ge=0, le=1, description="int8: share of the same first answers, where the "
                                                           "reference leads by more than 0.2")
    top1: float = Field(0.93, ge=0, le=1, description="int8: share of the same first answers")
    score_mae: float = Field(0.2, gt=0, description="int8: by how much scores may move on average")
    spearman: float = Field(0.995, ge=-1, le=1, description="int8: rank correlation with the reference's scores")
    label_loss: float = Field(0.02, ge=0, description="int8: relative loss of MAE and Spearman against labels")
    other_int8: float = Field(0.05, gt=0, description="int8: largest difference of outputs that are neither classes "
                                                      "nor a score, relative to the largest")


class ModelSpec(Section):
    """A whole model.yaml."""

    name: str
    version: str = "1.0"
    handler: str = Field("classifier", description="classifier, food_recognizer, image_scorer, or FILE.py:CLASS")
    runtime: str = Field("ipex", description=f"one of {', '.join(RUNTIMES)}, or auto: all that can be built here, and "
                                             "the fastest of them is served")
    network: NetworkSection
    head: HeadSection | None = None
    labels: Path | None = None
    input: InputSection = InputSection()
    output: OutputSection = OutputSection()
    batch: BatchSection = BatchSection()
    photos: Path | None = Field(None, description="a folder of photos as users send them: int8 is calibrated on some "
                                                  "and every runtime judged on the others")
    tolerance: Tolerance = Tolerance()

    @model_validator(mode="after")
    def _one_head(self) -> ModelSpec:
        if self.head is not None and self.network.features == "score":
            raise ValueError("network.features: score ends in a score already: leave out head")
        return self

    @field_validator("name", "version")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", value):
            raise ValueError("letters, digits, '_', '.' and '-' are allowed (it becomes part of addresses)")
        return value

    @field_validator("runtime")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in RUNTIMES and value != AUTO:
            raise ValueError(f"one of {', '.join(RUNTIMES)}, or {AUTO}")
        return value

    @field_validator("handler")
    @classmethod
    def _handler(cls, value: str) -> str:
        if value not in BUILTIN_HANDLERS and not re.fullmatch(r"[A-Za-z_]\w*\.py:[A-Za-z_]\w*", value):
            raise ValueError(f"one of {', '.join(BUILTIN_HANDLERS)}, or FILE.py:CLASS beside model.yaml")
        return value


BUILTIN_HANDLERS = {
    "classifier": ("handlers.classifier", "Classifier"),
    "food_recognizer": ("handlers.food_recognizer", "FoodRecognizer"),
    "image_scorer": ("handlers.image_scorer", "ImageScorer"),
}


def read_spec(folder: Path) -> ModelSpec:
    """Reads FOLDER/model.yaml.

    Raises:
        ArtifactError: missing, not YAML, or a field is wrong (each is named, with its value).
    """
    path = folder / FILE
    try:
        data: Any = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ArtifactError("cannot read the model's description", where=str(path), why=str(error),
                            remedy="a model is a folder with a model.yaml: see the README's `Your own model`"
                            ) from error
    if not isinstance(data, dict):
        raise ArtifactError("a model.yaml holds name, network, …", where=str(path), why=f"found {data!r}")
    try:
        return ModelSpec.model_validate(data)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, one['loc'])) or 'model'}: {one['msg'].removeprefix('Value error, ')}"
                 + ("" if one["type"] in ("missing", "value_error") and isinstance(one["input"], dict)
                    else f" (found {one['input']!r})") for one in error.errors()]
        raise ArtifactError("the model's description is wrong", where=str(path), why="; ".join(lines)) from None

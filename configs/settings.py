"""serving.yaml, the one file a user edits: validated, with a sound default for everything.

An empty or missing file serves every archive of the model store.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from configs.errors import SettingsError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


Port = Annotated[int, Field(ge=1, le=65534)]  # TorchServe takes no 65535


class Section(BaseModel):
    """Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSettings(Section):
    """One model's share of the pod; workers and threads are the user's word against the plan's."""

    share: float = Field(1.0, gt=0, description="its part of the CPU, relative to the other models' shares")
    runtime: str | None = Field(None, description="one that the archive was built for, or auto: the fastest of them")
    workers: int | None = Field(None, ge=1)
    threads: int | None = Field(None, ge=1)
    response_timeout_s: int | None = Field(None, ge=1)
    startup_timeout_s: int | None = Field(None, ge=1)


class Slo(Section):
    """What the service promises. A latency promise asks for fewer, wider workers."""

    p99_ms: float | None = Field(None, gt=0)


class Drain(Section):
    """How SIGTERM ends: /ready turns 503, requests are served for notice_seconds more, then until all are idle."""

    notice_seconds: float = Field(0.0, ge=0)
    grace_seconds: float = Field(30.0, ge=0)


class Ports(Section):
    """All but inference and health stay on the loopback address."""

    inference: Port = 8080
    management: Port = 8081
    metrics: Port = 8082
    health: Port = 8090
    grpc_inference: Port = 7070
    grpc_management: Port = 7071

    @model_validator(mode="after")
    def _distinct(self) -> Ports:
        seen: dict[int, str] = {}
        for name, port in self:
            if port in seen:
                raise ValueError(f"{name} and {seen[port]} are both {port}")
            seen[port] = name
        return self


class Settings(Section):
    """A whole serving.yaml."""

    models: dict[str, ModelSettings] = Field({}, description="empty: every archive of the model store")
    slo: Slo = Slo()
    placement: Literal["auto", "exclusive", "shared"] = "auto"
    launcher: Literal["auto", "off"] = Field("auto", description="TorchServe's CPU launcher, where it does what the "
                                                                 "plan says")
    bind: str = Field("127.0.0.1", description="address of the inference and health ports; 0.0.0.0 in a container")
    ports: Ports = Ports()
    drain: Drain = Drain()
    token_authorization: bool = Field(False, description="TorchServe's own keys: every request then needs one")
    access_log: bool = False
    max_request_mb: int = Field(16, ge=1, le=1024, description="largest request; base64 takes 4/3 of a file")
    job_queue_size: int = Field(100, ge=1, description="requests a model may have waiting before it answers 503")

    @field_validator("launcher", mode="before")
    @classmethod
    def _off(cls, launcher: object) -> object:
        """YAML takes the word `off` for false."""
        return "off" if launcher is False else launcher

    @field_validator("bind")
    @classmethod
    def _ipv4(cls, bind: str) -> str:
        try:
            return str(IPv4Address(bind))
        except ValueError:
            raise ValueError("must be an IPv4 address: TorchServe takes no other") from None


def read_settings(path: Path | None) -> Settings:
    """Reads a serving.yaml; None gives the defaults.

    Raises:
        SettingsError: missing, not YAML, or a field is wrong (each is named, with its value).
    """
    if path is None:
        return Settings()
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError("cannot read the serving file", where=str(path), why=str(error)) from error
    if data is None:
        return Settings()
    if not isinstance(data, dict):
        raise SettingsError("a serving file holds keys and values", where=str(path), why=f"found {data!r}")
    # a key with nothing behind it, such as "models: {food_recognizer: }", means its defaults
    data = {key: value for key, value in data.items() if value is not None or key not in Settings.model_fields}
    if isinstance(data.get("models"), dict):
        data["models"] = {name: {} if value is None else value for name, value in data["models"].items()}
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise SettingsError("the serving file is wrong", where=str(path),
                            why="; ".join(_in_words(one) for one in error.errors()),
                            remedy="`tscpu plan --help` and the README list the keys") from None


def _in_words(error: ErrorDetails) -> str:
    """The field, what is wrong with it, and the value found."""
    field = ".".join(map(str, error["loc"])) or "file"
    if error["type"] == "extra_forbidden":
        known = [name for section in (Settings, ModelSettings, Slo, Drain, Ports) for name in section.model_fields]
        nearest = get_close_matches(str(error["loc"][-1]), known, 1)
        what = "no such key" + (f"; {nearest[0]} perhaps?" if nearest else "")
    else:
        what = re.sub("a valid dictionary.*", "keys and values", error["msg"].removeprefix("Value error, "))
    return f"{field}: {what}" + ("" if isinstance(error["input"], dict | BaseModel) else f" (found {error['input']!r})")

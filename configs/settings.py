"""serving.yaml, the one file a user edits: validated, with a sound default for everything.

An empty or missing file serves every archive of the model store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from configs.errors import SettingsError


class Section(BaseModel):
    """Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSettings(Section):
    """One model's share of the pod; workers and threads are the user's word against the plan's."""

    share: float = Field(1.0, gt=0, description="its part of the CPU, relative to the other models' shares")
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

    inference: int = Field(8080, ge=1, le=65535)
    management: int = Field(8081, ge=1, le=65535)
    metrics: int = Field(8082, ge=1, le=65535)
    health: int = Field(8090, ge=1, le=65535)
    grpc_inference: int = Field(7070, ge=1, le=65535)
    grpc_management: int = Field(7071, ge=1, le=65535)

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


def read_settings(path: Path | None) -> Settings:
    """Reads a serving.yaml; None gives the defaults.

    Raises:
        SettingsError: missing, not YAML, or a field is wrong (each is named, with its value).
    """
    if path is None:
        return Settings()
    try:
        data: Any = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError("cannot read the serving file", where=str(path), why=str(error)) from error
    if data is None:
        return Settings()
    if not isinstance(data, dict):
        raise SettingsError("a serving file holds keys and values", where=str(path), why=f"found {data!r}")
    # "models: {food_recognizer: }" means its defaults
    if isinstance(data.get("models"), dict):
        data["models"] = {name: {} if value is None else value for name, value in data["models"].items()}
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        why = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'file'}: {one['msg'].removeprefix('Value error, ')}"
                        + ("" if isinstance(one["input"], dict | BaseModel) else f" (found {one['input']!r})")
                        for one in error.errors())
        raise SettingsError("the serving file is wrong", where=str(path), why=why,
                            remedy="`tscpu plan --help` and the README list the keys") from None

"""The Dockerfile, as hadolint reads it, and what it must agree with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deploy.image import IMAGE
from tests.unit.deploy.stored import of_kind, stored

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.is_file():
        pytest.skip("hadolint is not installed")
    done = subprocess.run([str(hadolint), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_image_and_manifests_agree() -> None:
    container = of_kind(stored("shared-node"), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == IMAGE
    assert f"USER {10001}:{10001}" in DOCKERFILE
    for port in container["ports"]:
        assert f" {port['containerPort']}" in DOCKERFILE.split("EXPOSE", 1)[1].splitlines()[0]
    assert yaml.safe_load((ROOT / "deploy" / "base" / "serving.yaml").read_text())["bind"] == "0.0.0.0"


def test_the_build_context_holds_what_is_copied() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for line in DOCKERFILE.splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and "--from" not in line:
            assert any(name.startswith(words[1]) for name in kept), line

"""tscpu predict: files through a running server, answers as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from scripts.console import errors_as_messages, out, print_json, table


def predict(
    model: str = typer.Argument(help="A served model."),
    files: list[Path] = typer.Argument(help="Photos (JPEG, PNG, WebP) or tensors (.npy, .safetensors)."),
    address: str = typer.Option("http://127.0.0.1:8080", help="The inference address."),
    as_json: bool = typer.Option(False, "--json", help="Print the answers as JSON."),
) -> None:
    """Send files to a model and print its answers.

    Example: tscpu predict food_recognizer coffee.jpg
    """
    with errors_as_messages():
        from configs.errors import SettingsError
        from serving.client import Client

        client = Client(inference=address)
        rows: list[dict[str, Any]] = []
        for file in files:
            try:
                body = file.read_bytes()
            except OSError as error:
                raise SettingsError("cannot read the file", where=str(file), why=error.strerror or "") from error
            answer = client.predict(model, body)
            rows.append({"file": file.name, "status": answer.status, "answer": answer.body,
                         "ms": round(answer.seconds * 1000, 1)})
        if as_json:
            print_json(rows)
        else:
            out.print(table(model, ["file", "status", "answer", "ms"],
                            [[row["file"], row["status"], answer_text(row["answer"]), row["ms"]] for row in rows]))
        if any(row["status"] != 200 for row in rows):
            raise typer.Exit(1)


def answer_text(answer: Any) -> str:
    """An answer of our handlers in one line."""
    if not isinstance(answer, dict):
        return str(answer)
    if "message" in answer:
        return str(answer["message"])
    parts = [f"{key.replace('_', ' ')} {value:.3f}" for key, value in answer.items() if isinstance(value, float)]
    parts += [f"{each['label']} {each['probability']:.3f}" for each in answer.get("predictions", [])[:3]]
    return ", ".join(parts) or str(answer)

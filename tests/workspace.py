"""A folder as the documentation assumes it: questions, traces, samples, detectors, photos. The
embedded model is replaced by a tiny one; everything else is real."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import clew
from clew.hallucination.labels import normalize_answer
from clew.hallucination.llm import models
from tests.builders import save_tiny_model
from tests.stores import one_thread

QUESTIONS = 160  # 12 of each class to validate on
_WORDINGS = ("What is number {}?", "Who were the parents of person {} in town?")
_COLORS = {"blue": (40, 40, 200), "red": (200, 40, 40)}


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Run in the folder, where the embedded model is the tiny one."""
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr(models, "embedded_model_folder", lambda: folder / "my-model")
        patch.chdir(folder)
        yield


def make_workspace(folder: Path) -> Path:
    save_tiny_model(folder / "my-model")
    write_photos(folder)
    with inside(folder):
        _write_questions()
        clew.extract(questions="my_questions.csv", out="traces_data")
        clew.label("traces_data")
        clew.preprocess("traces_data")
        # After one epoch, a network may still be guessing.
        clew.train(networks=["lstm", "gnn_det"], epochs=1, amp=False, keep_at_chance=True)
    return folder


def _write_questions() -> None:
    """Every other question accepts what the tiny model answers, so that both kinds exist; it has
    other words, so that the model's states tell them apart."""
    numbers = range(QUESTIONS)
    questions = [{"question": _WORDINGS[n % 2].format(n), "answer": "?"} for n in numbers]
    asked = clew.extract(questions=questions, out="asked")
    with open("my_questions.csv", "w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["id", "question", "answer", "category"])
        for number, trace in enumerate(asked):
            said = normalize_answer(trace["answer"]) if number % 2 else ""
            lines.writerow([f"q{number}", trace["question"], said or "nothing", f"c{number % 3}"])


def write_photos(folder: Path) -> None:
    """Noisy squares of two colors, and some of them as new photos."""
    random = np.random.default_rng(0)
    for name, color in _COLORS.items():
        for number in range(20):
            noise = random.integers(-40, 40, (32, 32, 3))
            photo = Image.fromarray((np.array(color) + noise).astype(np.uint8))
            for place in (f"my_photos/{name}", *(["new_photos"] if number < 3 else [])):
                (folder / place).mkdir(parents=True, exist_ok=True)
                photo.save(folder / place / f"{name}{number}.png")
    photo.save(folder / "photo.jpg")

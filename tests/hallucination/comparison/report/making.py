"""A finished comparison as `clew compare` writes it, from simulated risks: no model is run."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from tests.samples import made_once

# name, title, family, how far apart the two classes lie (in standard deviations).
METHODS = (
    ("length", "Answer length only", "baseline", 0.35),
    ("category", "Category only", "baseline", 0.60),
    ("perplexity", "Perplexity", "no training", 1.00),
    ("min_probability", "Minimum token probability", "no training", 1.05),
    ("mean_entropy", "Mean entropy", "no training", 0.95),
    ("semantic_entropy", "Semantic entropy", "no training", 1.20),
    ("attention_score", "Attention score (LLM-Check)", "no training", 0.45),
    ("linear_probe", "Linear probe, layer from validation", "probe", 1.95),
    ("linear_probe_middle", "Linear probe, middle layer", "probe", 1.80),
    ("linear_probe_pca", "Linear probe, all layers (PCA)", "probe", 2.00),
    ("saplma", "SAPLMA", "probe", 1.85),
    ("lapeigvals", "LapEigvals", "probe", 1.55),
    ("attn_logdet", "AttnLogDet", "probe", 1.35),
    ("lookback", "Lookback Lens", "probe", 1.30),
    ("lstm", "LSTM over layers", "network", 1.90),
    ("gnn_det", "GNN-det + LSTM", "network", 2.15),
    ("gvae", "GVAE + LSTM", "network", 1.70),
    ("act_vit", "ACT-ViT", "network", 1.75),
)
NETWORKS = ("lstm", "gnn_det", "gvae", "act_vit")
LAYERS = 30
_PLACES = (
    ("capital", "What is the capital of {}?", "{} City", "Port {}"),
    ("country of a city", "In which country does the city of {} lie?", "{}land", "{}ia"),
    ("currency", "What is the currency of {}?", "the {} dollar", "the {} franc"),
    ("continent", "On which continent does {} lie?", "Africa", "Asia"),
    ("language", "Which language do most people of {} speak?", "{}ese", "{}ish"),
)
_NAMES = ("Alba", "Borneo", "Corvo", "Delos", "Elva", "Faro", "Gozo", "Hvar", "Ios", "Jura")

# As a comparison tells them; the headline says what the best and the baselines come to.
FINDINGS = {
    "best": "The best on validation, GNN-det + LSTM, beats perplexity.",
    "baselines": "Baselines that do not use the model: Answer length only reaches 0.6.",
    "graphs": "Networks over the attention graphs help: by a hair.",
    "layers": "Methods on the states of all layers hurt: a little.",
}


@made_once
def make_comparison(
    folder: Path,
    *,
    test: int = 300,
    texts: list[dict[str, Any]] | None = None,
    one_label: bool = False,
) -> Path:
    """A folder with results.json, scores.arrow and the networks' logs. `texts` stand in the place
    of the first test answers' question, answer, correct answer and category; with `one_label` all
    test answers are hallucinated."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    labels = {
        split: (np.arange(count) % 5 < 3).astype(np.int8)
        for split, count in (("validation", max(test, 40)), ("test", test))
    }
    if one_label:
        labels["test"][:] = 1
    scores = _draw_scores(random, labels)
    _write_scores(folder, labels, scores, texts or [])
    results = _results(random, labels, scores)
    (folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    for network in NETWORKS:
        for number in range(3):
            _write_log(folder / "networks" / network / f"seed-{number}" / "log.csv", random)
    return folder


def change_results(folder: Path, **changes: Any) -> None:
    """Put other values in the place of those of results.json."""
    path = folder / "results.json"
    results = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(results), encoding="utf-8")


def read_results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def _draw_scores(
    random: np.random.Generator, labels: dict[str, np.ndarray]
) -> dict[str, dict[str, np.ndarray]]:
    """Methods share what makes an answer hard; those of one family share more."""
    scores: dict[str, dict[str, np.ndarray]] = {}
    for split, truth in labels.items():
        hardness = random.normal(size=len(truth))
        family = {name: random.normal(size=len(truth)) for _, _, name, _ in METHODS}
        scores[split] = {}
        for name, _, kind, distance in METHODS:
            noise = 0.55 * hardness + 0.55 * family[kind] + 0.63 * random.normal(size=truth.shape)
            logit = distance * ((truth * 2.0 - 1) * distance / 2 + noise)
            scores[split][name] = (1 / (1 + np.exp(-logit))).astype(np.float32)
    return scores


def _write_scores(
    folder: Path,
    labels: dict[str, np.ndarray],
    scores: dict[str, dict[str, np.ndarray]],
    texts: list[dict[str, Any]],
) -> None:
    rows: list[dict[str, Any]] = []
    for split, truth in labels.items():
        for place, label in enumerate(truth):
            row = _answer(place, split, int(label))
            row |= texts[place] if split == "test" and place < len(texts) else {}
            row |= {_column(name): float(scores[split][name][place]) for name, *_ in METHODS}
            rows.append(row)
    numbers = [pa.field(_column(name), pa.float32()) for name, *_ in METHODS]
    table = pa.Table.from_pylist(rows, schema=pa.schema([*_text_fields(), *numbers]))
    with pa.ipc.new_file(folder / "scores.arrow", table.schema) as writer:
        writer.write_table(table)


def _column(method: str) -> str:
    return f"risk_{method}"


def _text_fields() -> list[pa.Field]:
    words = ("split", "question_id", "category", "question", "answer", "accepted_answers")
    fields = [pa.field(name, pa.string()) for name in words]
    fields.insert(1, pa.field("global_example_id", pa.int64()))
    return [*fields, pa.field("label", pa.int8())]


def _answer(place: int, split: str, label: int) -> dict[str, Any]:
    category, question, right, wrong = _PLACES[place % 7 % len(_PLACES)]
    name = _NAMES[place // 5 % len(_NAMES)]
    return {
        "split": split,
        "global_example_id": place + (1000 if split == "test" else 0),
        "question_id": f"{split}-{place}",
        "category": category,
        "question": question.format(name),
        "answer": (wrong if label else right).format(name),
        "accepted_answers": right.format(name),
        "label": label,
    }


def _results(
    random: np.random.Generator,
    labels: dict[str, np.ndarray],
    scores: dict[str, dict[str, np.ndarray]],
) -> dict[str, Any]:
    rows = [_row(random, labels, scores, method) for method in METHODS]
    best = max(rows, key=lambda row: row["val_auroc"])
    others = {"best": best, "perplexity": next(r for r in rows if r["method"] == "perplexity")}
    for row in rows:
        for name, other in others.items():
            row[f"versus_{name}"] = None if row is other else _difference(row, other)
    counts = {
        split: {"right": int((truth == 0).sum()), "made_up": int(truth.sum())}
        for split, truth in {"train": np.tile(labels["validation"], 4), **labels}.items()
    }
    return {
        "methods": rows,
        "findings": FINDINGS,
        "left_out": [
            {
                "method": "charm",
                "title": "CHARM",
                "reason": 'run "clew extract" with `keep="full"`, then preprocess again',
            }
        ],
        "best": {"method": best["method"], "chosen_on": "validation"},
        "data": {**counts, "questions": "sha256:3f1c", "name": "facts"},
        "capture": {"model": "SmolLM2-135M-Instruct", "layers": LAYERS, "max_new_tokens": 32},
        "settings": {"seeds": 3, "resamples": 1000, "methods": [row["method"] for row in rows]},
        "plans": {name: {"device": "cpu", "precision": "32-true"} for name in NETWORKS},
        "versions": {"clew": "0.1.0", "torch": "2.13.0", "numpy": "2.4.1"},
        "transfer": None,
    }


def _row(
    random: np.random.Generator,
    labels: dict[str, np.ndarray],
    scores: dict[str, dict[str, np.ndarray]],
    method: tuple[str, str, str, float],
) -> dict[str, Any]:
    name, title, family, distance = method
    truth, test = labels["test"], scores["test"][name]
    auroc = float(roc_auc_score(truth, test)) if truth.min() < truth.max() else 0.5
    half = min(0.5 / np.sqrt(len(truth)), 1 - auroc)
    is_seeded = family == "network" or name == "saplma"
    has_layers = name in ("linear_probe", "saplma", "attention_score")
    return {
        "method": name,
        "title": title,
        "family": family,
        "val_auroc": float(roc_auc_score(labels["validation"], scores["validation"][name])),
        "test_auroc": auroc,
        "test_auroc_ci": [auroc - half, auroc + half],
        "test_auprc": float(average_precision_score(truth, test)),
        "test_f1": float(f1_score(truth, test >= 0.5)),
        "test_accuracy": float(np.mean((test >= 0.5) == truth)),
        "test_ece": float(abs(test.mean() - truth.mean())) + 0.02,
        "test_aurc": float(0.6 - 0.5 * auroc / 2),
        "threshold": 0.5,
        "seeds": 3 if is_seeded else 1,
        "test_auroc_mean": auroc - 0.004 if is_seeded else None,
        "test_auroc_std": 0.008 if is_seeded else None,
        "parameters": {"baseline": 2, "no training": 0, "probe": 577, "network": 412_673}[family],
        "train_seconds": {"network": 61.2, "probe": 2.4}.get(family, 0.0),
        "ms_per_answer": {"network": 1.31, "probe": 0.04}.get(family, 0.002),
        "bytes_per_answer": {"network": 34_560, "probe": 1152}.get(family, 64),
        "chosen": {},
        "by_layer": None,
        **(_layers(random, distance) if has_layers else {}),
    }


def _layers(random: np.random.Generator, distance: float) -> dict[str, Any]:
    layers = np.arange(LAYERS)
    shape = 0.5 + 0.2 * distance * np.exp(-(((layers - 18) / 11) ** 2))
    by_layer = {
        split: np.clip(shape + random.normal(scale=0.008, size=LAYERS), 0, 0.99).tolist()
        for split in ("validation", "test")
    }
    chosen = {"layer": int(np.argmax(by_layer["validation"])), "C": 0.01}
    return {"chosen": chosen, "by_layer": by_layer}


def _difference(row: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    difference = row["test_auroc"] - other["test_auroc"]
    p_value = float(np.exp(-abs(difference) * 60))
    low, high = difference - 0.03, difference + 0.03
    return {"difference": difference, "low": low, "high": high, "p_value": p_value}


def _write_log(path: Path, random: np.random.Generator) -> None:
    path.parent.mkdir(parents=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "step", "train_loss", "val_loss", "val_auroc", "lr"])
        for epoch in range(1, 19):
            fall = np.exp(-epoch / 5) + random.normal(scale=0.01)
            loss = 0.35 + 0.35 * fall + 0.004 * epoch
            writer.writerow([epoch, epoch * 30, 0.25 + 0.45 * fall, loss, 0.93 - 0.3 * fall, 1e-3])

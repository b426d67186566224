"""Write small stores, samples, detectors and classifiers with the version of clew on the path.

    PYTHONPATH=/path/to/clew-8b887bb/src python tests/compatibility/make_files.py FOLDER

Every file is made by a command, as a user makes it; `known_values.json` holds what that version
read back. `files_8b887bb` was written by commit 8b887bb and is never written again: a later format
gets a folder of its own.
"""

import csv
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

QUESTIONS, VOCABULARY = 40, 300
COLOURS = {"blue": (30, 60, 220), "green": (40, 200, 60), "red": (210, 40, 40)}
CPU = ("--device", "cpu", "--num-workers", 0, "--no-amp", "--no-compile")


def clew(*arguments):
    subprocess.run([sys.executable, "-m", "clew", *map(str, arguments)], check=True)


def save_tiny_model(folder):
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    inner.train_from_iterator(["What is the capital of France? It is Paris."], trainer)
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def make_hallucination(out, scratch):
    save_tiny_model(scratch / "model")
    questions = [
        {"id": f"q{n}", "question": f"What is number {n}?", "answer": ["Paris"]}
        for n in range(QUESTIONS)
    ]
    (scratch / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    with (scratch / "scores.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question_id", "score"])
        rows.writerows([f"q{n}", [1.0, 0.0, 0.75, 0.25, 0.5][n % 5]] for n in range(QUESTIONS))
    clew(
        *("extract", "--model", scratch / "model", "--questions", scratch / "questions.jsonl"),
        *("--out", out / "traces", "--batch-size", 20, "--generation-batch", 8, "--device", "cpu"),
        *("--max-new-tokens", 3, "--node-dim", 4, "--edges-per-token", 2),
    )
    clew(
        *("preprocess", out / "traces", "--scores-file", scratch / "scores.csv"),
        *("--out", out / "samples"),
    )
    clew(
        *("train", "--preprocessed-dir", out / "samples", "--output-dir", out / "trained"),
        *("--no-run-gvae", "--lstm-hidden", 4, "--gnn-hidden", 4, "--num-lstm-layers", 1),
        *("--epochs", 2, "--batch-size", 8, *CPU),
    )
    clew(
        *("compare", "--preprocessed-dir", out / "samples", "--output-dir", out / "comparison"),
        *("--methods", "perplexity,linear_probe,lookback", "--seeds", 1, "--device", "cpu"),
    )


def make_patterns(out, scratch):
    random = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (scratch / "photos" / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.clip(random.normal(colour, 25, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(scratch / "photos" / name / f"{number}.png")
    library = ("--library", out / "library")
    clew("patterns", "create", "colours", *library)
    clew("patterns", "import", "colours", scratch / "photos", *library)
    clew(
        *("patterns", "train", "colours", *library, "--network", "tiny", "--image-size", 16),
        *("--epochs", 4, "--batch-size", 8, "--lr", 0.02, "--no-augment", *CPU),
    )


def identify(out, scratch):
    """The most likely class of every photo with its probability."""
    clew(
        *("patterns", "identify", out / "library/colours/photos", "--name", "colours"),
        *("--library", out / "library", "--output-dir", scratch / "identified", "--device", "cpu"),
    )
    photos = json.loads((scratch / "identified/identified.json").read_text())["photos"]
    return {
        photo["name"]: [photo["best"][0]["class"], photo["best"][0]["probability"]]
        for photo in photos
    }


def read_known_values(out):
    from clew import TraceBatchLoader
    from clew.datasets import Loader, PreprocessedGNNMapDataset, PreprocessedLSTMMapDataset
    from clew.hallucination.detectors.detector_folder import load_detector

    traces = TraceBatchLoader(out / "traces")
    trace = traces.get_batch(1)[3]
    sequences = PreprocessedLSTMMapDataset(out / "samples", split="test")
    graphs = PreprocessedGNNMapDataset(out / "samples", split="test", with_sequence=True)
    lstm, gnn = (load_detector(out / "trained" / name) for name in ("lstm", "gnn_det"))
    batch = next(iter(Loader(sequences, len(sequences))))
    graph_batch = next(iter(Loader(graphs, len(graphs))))
    return {
        "batches": len(traces),
        "trace": {
            "question_id": trace["question_id"],
            "answer": trace["answer"],
            "columns": sorted(trace),
            "last_hidden": np.asarray(trace["last_hidden"], np.float64).reshape(-1)[:8].tolist(),
            "token_logprobs": np.asarray(trace["token_logprobs"], np.float64).tolist(),
        },
        "test_questions": list(batch["question_id"]),
        "labels": batch["label"].tolist(),
        "first_sequence": batch["sequence"][0].double().sum(1).tolist(),
        "graph_nodes": graph_batch.x.double().sum().item(),
        "graph_edges": list(graph_batch.edge_index.shape),
        "lstm": {"scores": lstm.score(batch).tolist(), "threshold": lstm.threshold},
        "gnn_det": {"scores": gnn.score(graph_batch).tolist(), "threshold": gnn.threshold},
    }


def remove_what_is_large(out):
    """Pages and pictures are only read by people, `last` only during a training."""
    for path in sorted(out.rglob("*")):
        is_page = path.suffix in (".html", ".png", ".jpg") and "photos" not in path.parts
        is_last = path.name == "last.safetensors" and path.stat().st_size > 100_000
        if path.is_file() and (is_page or is_last or path.name == ".lock"):
            path.unlink()
    for logs in list(out.rglob("tensorboard")):
        shutil.rmtree(logs)


def main():
    out = Path(sys.argv[1]).resolve()
    out.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        make_hallucination(out, Path(folder))
        make_patterns(out, Path(folder))
        known = {**read_known_values(out), "photos": identify(out, Path(folder))}
    (out / "known_values.json").write_text(json.dumps(known, indent=1) + "\n")
    remove_what_is_large(out)


if __name__ == "__main__":
    main()

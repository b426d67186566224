"""Both main jobs of an installed clew, tiny, through its commands: from questions to detectors,
and from photos to a classifier. Run it in an empty folder."""

import csv
import random
import shutil
import subprocess
import sys
from pathlib import Path

import clew

FOLDER = Path("my-model")
QUESTIONS = [f"What comes after {number}?" for number in range(80)]


def run(*words: str) -> None:
    subprocess.run([str(Path(sys.executable).with_name("clew")), *words], check=True)


def save_model() -> None:
    """A random transformer of three layers with a real tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(QUESTIONS, trainer)
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>").save_pretrained(FOLDER)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=300, initializer_range=0.2, eos_token_id=0, **sizes, **heads)
    LlamaForCausalLM(config).save_pretrained(FOLDER)


def write_scores() -> None:
    """Half of the answers count as correct, since a random model is never right."""
    with open("scores.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["question_id", "score"])
        for number, trace in enumerate(clew.TraceBatchLoader("traces_data").iter_traces()):
            lines.writerow([trace["question_id"], number % 2])


def detect_hallucinations() -> None:
    save_model()
    with open("questions.csv", "w", newline="") as file:
        csv.writer(file).writerows([["question", "answer"], *([q, "more"] for q in QUESTIONS)])
    small = ("--max-new-tokens", "6", "--node-dim", "8", "--cut", "none", "--device", "cpu")
    run("extract", "--model", f"./{FOLDER}", "--questions", "questions.csv", *small)
    run("label", "traces_data")
    write_scores()
    run("preprocess", "traces_data", "--scores-file", "scores.csv")
    run("compare", "--methods", "perplexity,linear_probe,lstm", "--seeds", "1", "--epochs", "2")
    run("train", "--epochs", "1", "--no-run-gvae", "--no-run-gnn-det")
    assert Path("comparison/report.html").stat().st_size > 10_000
    assert clew.load_detector("results/lstm").threshold >= 0


def classify_photos() -> None:
    from PIL import Image

    random.seed(0)
    for name, color in (("red", (200, 40, 40)), ("blue", (40, 40, 200))):
        Path("photos", name).mkdir(parents=True)
        for number in range(24):
            pixels = [tuple(c + random.randrange(-40, 40) for c in color) for _ in range(32 * 32)]
            photo = Image.new("RGB", (32, 32))
            photo.putdata(pixels)
            photo.save(Path("photos", name, f"{number}.png"))
    run("patterns", "train", "--data", "photos", "--network", "tiny", "--epochs", "2")
    shutil.copytree("photos/red", "new_photos")
    run("patterns", "identify", "new_photos", "--model", "trained", "--output-dir", "identified")
    assert Path("identified/identified.json").exists()


if __name__ == "__main__":
    assert "site-packages" in str(clew.__file__), f"clew is not installed: {clew.__file__}"
    run("--version")
    detect_hallucinations()
    classify_photos()
    sys.stdout.write("both main jobs run from the wheel\n")

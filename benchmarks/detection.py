"""Detection on `facts`, all methods on one split: the table of the README and docs/benchmarks.md.

    python benchmarks/detection.py --work DIR --out benchmarks/figures/detection.json
    python benchmarks/detection.py --comparison demo/comparison --out benchmarks/figures/demo.json

The first captures and compares; the second only writes the figures of a comparison that exists. A
test finds every figure of the README in such a file.
"""

import argparse
import json
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

FIGURES = ("title", "val_auroc", "test_auroc", "test_auroc_ci", "test_ece", "versus_perplexity")
FIGURES += ("test_auprc", "test_f1", "test_accuracy", "test_aurc", "parameters", "ms_per_answer")
FIGURES += ("bytes_per_answer",)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, help="folder to capture and compare in")
    parser.add_argument("--comparison", type=Path, help="one that exists")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures")
    parser.add_argument("--questions", default="facts")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--methods", help="[default: all]")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=15)
    args = parser.parse_args()
    folder = args.comparison or compare(args)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    write_figures(args.out, describe(results))
    for row in results["methods"]:
        print(markdown(row))


def compare(args):
    work = args.work
    run("extract", "--questions", args.questions, "--model", args.model, "--out", work / "traces")
    run("label", work / "traces", "--out", work / "scores.csv", "--overwrite")
    some = ("--scores-file", work / "scores.csv", "--out", work / "samples")
    run("preprocess", work / "traces", *some)
    some = ("--methods", args.methods) if args.methods else ()
    some += ("--seeds", args.seeds, "--epochs", args.epochs, "--out", work / "comparison")
    run("compare", "--preprocessed-dir", work / "samples", *some)
    return work / "comparison"


def run(*words):
    subprocess.run([sys.executable, "-m", "clew", *map(str, words)], check=True)


def describe(results):
    """What is published of a comparison."""
    rows = {row["method"]: {name: row.get(name) for name in FIGURES} for row in results["methods"]}
    test = results["data"]["test"]
    tested = {"answers": sum(test.values()), "hallucinated": test["hallucinated"]}
    tested["share"] = tested["hallucinated"] / tested["answers"]
    return {
        "data": results["data"],
        "tested": tested,
        "best": results["best"]["method"],
        "methods": rows,
    }


def write_figures(path, figures):
    about = {
        "command": " ".join(["python", *sys.argv]),
        "machine": name_machine(),
        "date": date.today().isoformat(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**about, **figures}, indent=1) + "\n", encoding="utf-8")


def name_machine():
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def markdown(row):
    """A line of the table in docs/benchmarks.md."""
    low, high = row["test_auroc_ci"]
    return (
        f"| {row['title']} | {row['val_auroc']:.3f} | {row['test_auroc']:.3f} [{low:.3f}, "
        f"{high:.3f}] | {row['test_ece']:.3f} | {versus(row['versus_perplexity'])} | "
        f"{row['parameters']:,} | {row['ms_per_answer']:.2f} |"
    )


def versus(found):
    if found is None:
        return "-"
    return f"{found['difference']:+.3f}{'*' if found['p_value'] < 0.05 else ''}"


if __name__ == "__main__":
    main()

"""What was measured, printed as it comes and saved as JSON."""

import json
import platform
import time
from pathlib import Path

import torch

RESULTS = Path(__file__).resolve().parents[1] / "results"


class Report:
    def __init__(self, args):
        self.rows = []
        self.machine = {
            "machine": platform.machine(),
            "cpu_threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if args.device == "cuda" else None,
            "torch": torch.__version__,
        }
        self.settings = {name: str(value) for name, value in vars(args).items()}
        print(", ".join(f"{name} {value}" for name, value in self.machine.items() if value))

    def title(self, text):
        print(f"\n{text}", flush=True)

    def add(self, part, text, **figures):
        self.rows.append({"part": part, "row": text, **figures})
        told = "  ".join(f"{name} {show(value)}" for name, value in figures.items())
        print(f"  {text:<44} {told}", flush=True)

    def save(self, name="train"):
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{name}_{time.strftime('%Y%m%d_%H%M%S')}.json"
        content = {"machine": self.machine, "settings": self.settings, "rows": self.rows}
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
        print(f"\nsaved as {path.name}")


def show(value):
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
    return str(value)

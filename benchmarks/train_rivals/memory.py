"""What gradient checkpointing saves, and the process's own memory over epochs and shards."""

import tempfile
from pathlib import Path

from clew.engine import EpochEnded, PlanRequest, TrainConfig, fit

from .data import write_folder
from .speed import build, open_files

EPOCHS = 12


def run(args, report):
    report.title(f"memory, on {args.device}")
    small, large = args.data / "memory_1x", args.data / "memory_4x"
    sizes = (16, 32) if args.quick else (1000, 4000)
    for folder, size in zip((small, large), sizes, strict=True):
        write_folder(folder, (size, size // 10 or 1, size // 10 or 1))
    epochs = 2 if args.quick else EPOCHS
    for name in args.network:
        plan = train(args, name, small, epochs=1, checkpointing=True)[0].plan
        report.add("memory", f"{name}: {plan.reasons['gradient_checkpointing']}")
        for size, folder in zip(sizes, (small, large), strict=True):
            _, memory = train(args, name, folder, epochs=epochs)
            told = {
                f"epoch_{number}_MiB": memory[number - 1] for number in (2, epochs // 2, epochs)
            }
            report.add("memory", f"{name}: {size:,} samples, own memory after", **told)


def train(args, name, folder, epochs, checkpointing=False):
    watch = Watch()
    opened = open_files(folder, name)

    with tempfile.TemporaryDirectory() as out:
        result = fit(
            build(name),
            opened("train"),
            opened("validation"),
            config=TrainConfig(epochs=epochs, patience=None),
            request=PlanRequest(
                device=args.device, batch_size=32, gradient_checkpointing=checkpointing
            ),
            output_dir=Path(out),
            reporter=watch,
        )
    return result, watch.memory


class Watch:
    """Notes after every epoch what memory is the process's own: mapped files are the system's."""

    def __init__(self):
        self.memory = []

    def __call__(self, event):
        if isinstance(event, EpochEnded):
            lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
            own = next(line for line in lines if line.startswith("RssAnon"))
            self.memory.append(int(own.split()[1]) // 1024)

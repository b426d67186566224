"""The memory of a process and all its children: proportional set size, shared pages shared out."""

import re
import threading
from pathlib import Path

import psutil

PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)


def read_pss(process):
    """Bytes held by `process` and its children now."""
    total = 0
    try:
        for member in [process, *process.children(recursive=True)]:
            total += read_one(member.pid)
    except psutil.NoSuchProcess:
        pass
    return total


def read_one(pid):
    try:
        found = PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) * 1024 if found else 0


class PssWatch:
    """The highest PSS seen while watching; `pause` for the time of a measurement."""

    def __init__(self, pid, every_seconds=0.05):
        self.process = psutil.Process(pid)
        self.every_seconds = every_seconds
        self.peak = 0
        self.awake, self.done = threading.Event(), threading.Event()
        self.awake.set()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while not self.done.wait(self.every_seconds):
            self.awake.wait()
            self.peak = max(self.peak, read_pss(self.process))

    def pause(self):
        self.awake.clear()

    def resume(self):
        self.awake.set()

    def stop(self):
        self.done.set()
        self.resume()
        self.thread.join()
        return self.peak

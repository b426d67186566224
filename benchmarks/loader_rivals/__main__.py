"""One job in a process of its own: `python -m loader_rivals '{"do": "measure_stream", ...}'`."""

import json
import sys
from pathlib import Path

from . import child, limits


def main():
    job = json.loads(sys.argv[1])
    paths = {key: Path(job.pop(key)) for key in ("data", "folder")}
    do = job.pop("do")
    getattr(child if hasattr(child, do) else limits, do)(**paths, **job)


if __name__ == "__main__":
    main()

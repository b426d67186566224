from tests.cli.running import run, signals

__all__ = ["run", "signals"]

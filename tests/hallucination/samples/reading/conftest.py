from tests.loading.conftest import folder, samples

__all__ = ["folder", "samples"]

from tests.hallucination.legacy.old_files import graph_classes

__all__ = ["graph_classes"]

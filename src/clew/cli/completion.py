"""What the shell suggests for the value of an option. Imports nothing heavy: a person waits."""

from collections.abc import Callable
from glob import escape, glob
from pathlib import Path

Complete = Callable[[str], list[str]]
# A test compares this list with the methods of the library, which take seconds to import.
METHODS = (
    *("length", "category", "text", "perplexity", "min_probability"),
    *("mean_entropy", "semantic_entropy", "entailment_entropy", "p_true"),
    *("consistency", "selfcheck_ngram", "attention_score", "linear_probe"),
    *("semantic_entropy_probe", "linear_probe_middle", "linear_probe_pca"),
    *("ccs", "contrast_probe", "lapeigvals", "attn_logdet"),
    *("lookback", "token_probe", "fusion", "robust", "gated", "saplma", "contrastive"),
    *("lstm", "gnn_det", "gvae", "charm", "act_vit"),
)

# Likewise, the built-in question sets.
QUESTIONS = (
    *("facts", "elements", "arithmetic", "languages", "abbreviations", "everyday", "reading"),
    *("statements", "words", "culture", "facts-spans", "all"),
)

# Likewise, the GPUs that a dry run knows.
GPUS = (
    *("t4", "v100", "a10", "a100", "a100-40gb", "l4", "l40s", "rtx4090"),
    *("h100", "h100-pcie", "h200", "b200"),
)


def suggest_words(*words: str) -> Complete:
    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def suggest_list(*words: str) -> Complete:
    """For several words between commas; those already typed are not suggested again."""

    def complete(incomplete: str) -> list[str]:
        typed, comma, last = incomplete.rpartition(",")
        left = [word for word in words if word not in typed.split(",")]
        return [f"{typed}{comma}{word}" for word in left if word.startswith(last)]

    return complete


def suggest_words_and_paths(*words: str) -> Complete:
    def complete(incomplete: str) -> list[str]:
        paths = sorted(glob(f"{escape(incomplete)}*"))
        folders = [f"{path}/" if Path(path).is_dir() else path for path in paths]
        return [*suggest_words(*words)(incomplete), *folders]

    return complete

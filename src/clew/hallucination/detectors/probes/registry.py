"""The methods fitted without the engine, by name. A new one takes its function and one entry."""

from functools import partial

from clew.hallucination.detectors.probes.attention import (
    DIAGONAL,
    LOG_DIAGONAL,
    LOOKBACK,
    SPECTRUM,
    learn_all_layers,
    learn_attention_score,
    learn_attn_logdet,
    learn_lapeigvals,
    learn_lookback,
)
from clew.hallucination.detectors.probes.baselines import (
    learn_category,
    learn_length,
    learn_statistic,
)
from clew.hallucination.detectors.probes.consistency import learn_consistency
from clew.hallucination.detectors.probes.contrastive import learn_contrastive
from clew.hallucination.detectors.probes.evaluation import (
    CONTRAST,
    learn_ccs,
    learn_contrast_probe,
    learn_entailment_entropy,
    learn_p_true,
)
from clew.hallucination.detectors.probes.fusion import SIGNALS, learn_fusion
from clew.hallucination.detectors.probes.gated import learn_gated
from clew.hallucination.detectors.probes.method import Method, Probe
from clew.hallucination.detectors.probes.robust import SIGNALS as ROBUST_SIGNALS
from clew.hallucination.detectors.probes.robust import learn_robust
from clew.hallucination.detectors.probes.semantic import (
    learn_entropy_probe,
    learn_semantic_entropy,
)
from clew.hallucination.detectors.probes.states import (
    STATES,
    learn_best_layer,
    learn_middle_layer,
    learn_saplma,
)
from clew.hallucination.detectors.probes.text import TEXTS, learn_text
from clew.hallucination.detectors.probes.tokens import NEEDS as TOKEN_FIELDS
from clew.hallucination.detectors.probes.tokens import SPANS, learn_token_probe
from clew.hallucination.traces.schema import ENTAILMENT, P_TRUE

_METHODS = (
    Probe(
        name="length",
        title="Answer length",
        family="baseline",
        needs=("token_logprobs",),
        learn=learn_length,
    ),
    Probe(
        name="category",
        title="Question category",
        family="baseline",
        needs=("category",),
        learn=learn_category,
    ),
    Probe(
        name="text",
        title="Question and answer text",
        family="baseline",
        needs=TEXTS,
        learn=learn_text,
    ),
    Probe(
        name="perplexity",
        title="Perplexity",
        family="no training",
        needs=("token_logprobs",),
        learn=partial(learn_statistic, "perplexity"),
    ),
    Probe(
        name="min_probability",
        title="Minimum token probability",
        family="no training",
        needs=("token_logprobs",),
        learn=partial(learn_statistic, "min_probability"),
    ),
    Probe(
        name="mean_entropy",
        title="Mean token entropy",
        family="no training",
        needs=("token_entropies",),
        learn=partial(learn_statistic, "mean_entropy"),
    ),
    Probe(
        name="semantic_entropy",
        title="Semantic entropy",
        family="no training",
        needs=("samples", "question"),
        learn=learn_semantic_entropy,
    ),
    Probe(
        name="entailment_entropy",
        title="Entailment entropy",
        family="no training",
        needs=(ENTAILMENT,),
        learn=learn_entailment_entropy,
    ),
    Probe(
        name="p_true",
        title="P(True)",
        family="no training",
        needs=(P_TRUE,),
        learn=learn_p_true,
    ),
    Probe(
        name="consistency",
        title="Consistency of drawn answers",
        family="no training",
        needs=("samples", *TEXTS),
        learn=partial(learn_consistency, "disagreement"),
    ),
    Probe(
        name="selfcheck_ngram",
        title="SelfCheckGPT (unigram)",
        family="no training",
        needs=("samples", *TEXTS),
        learn=partial(learn_consistency, "unigram"),
    ),
    Probe(
        name="attention_score",
        title="Attention score (LLM-Check)",
        family="no training",
        needs=(DIAGONAL, "token_logprobs"),
        learn=learn_attention_score,
    ),
    Probe(
        name="linear_probe",
        title="Linear probe",
        family="probe",
        needs=(STATES,),
        learn=learn_best_layer,
    ),
    Probe(
        name="semantic_entropy_probe",
        title="Semantic entropy probe",
        family="probe",
        needs=(STATES,),
        learn=learn_entropy_probe,
        learns_from=("samples", "question"),
    ),
    Probe(
        name="linear_probe_middle",
        title="Linear probe, middle layer",
        family="probe",
        needs=(STATES,),
        learn=learn_middle_layer,
    ),
    Probe(
        name="linear_probe_pca",
        title="Linear probe, all layers (PCA)",
        family="probe",
        needs=(STATES,),
        learn=learn_all_layers,
    ),
    Probe(
        name="saplma",
        title="SAPLMA",
        family="probe",
        needs=(STATES,),
        learn=learn_saplma,
        is_seeded=True,
    ),
    Probe(
        name="ccs",
        title="CCS",
        family="probe",
        needs=CONTRAST,
        learn=learn_ccs,
    ),
    Probe(
        name="contrast_probe",
        title="Contrast probe",
        family="probe",
        needs=CONTRAST,
        learn=learn_contrast_probe,
    ),
    Probe(
        name="contrastive",
        title="Contrastive embedding, kNN",
        family="probe",
        needs=(STATES, "token_logprobs", "token_entropies"),
        learn=learn_contrastive,
        is_seeded=True,
        also_reads=("state_mean",),
    ),
    Probe(
        name="lapeigvals",
        title="LapEigvals",
        family="probe",
        needs=(SPECTRUM,),
        learn=learn_lapeigvals,
    ),
    Probe(
        name="attn_logdet",
        title="AttnLogDet",
        family="probe",
        needs=(LOG_DIAGONAL,),
        learn=learn_attn_logdet,
    ),
    Probe(
        name="lookback",
        title="Lookback Lens",
        family="probe",
        needs=(LOOKBACK,),
        learn=learn_lookback,
    ),
    Probe(
        name="token_probe",
        title="Token probe",
        family="probe",
        needs=TOKEN_FIELDS,
        learn=learn_token_probe,
        also_reads=(SPANS,),
    ),
    Probe(
        name="fusion",
        title="Fusion (clew)",
        family="probe",
        needs=("sequence", "token_logprobs", "token_entropies"),
        learn=learn_fusion,
        also_reads=SIGNALS,
    ),
    Probe(
        name="robust",
        title="Robust (clew)",
        family="probe",
        needs=("sequence", "token_logprobs", "token_entropies"),
        learn=learn_robust,
        also_reads=(*ROBUST_SIGNALS, "category"),
    ),
    Probe(
        name="gated",
        title="Gated (clew)",
        family="probe",
        needs=("sequence", "token_logprobs", "token_entropies"),
        learn=learn_gated,
        also_reads=(*SIGNALS, "category"),
    ),
)
PROBES: dict[str, Method] = {method.name: method for method in _METHODS}

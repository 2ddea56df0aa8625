"""What the paper's text claims: a sentence in our words, where it is found there, and what decides it."""

from __future__ import annotations

from concf.experiments.paper import published
from concf.experiments.paper.published import BEST, CONSENSUS, R_CONSENSUS
from reproduction import decisions
from reproduction.decisions import (
    CONSIDERABLE,
    NEAR,
    STABLE,
    STUDENTS,
    beats,
    below_concf,
    every,
    gains,
    in_schemes,
    stable,
)
from reproduction.lines import NON_VOTING
from reproduction.verdicts import Claim

S4 = "Section 4.1"
FIG5A, FIG5B, FIG4, TRAINING = f"{S4}, Fig. 5a", f"{S4}, Fig. 5b", "Section 3.2.3, Fig. 4", "Appendix A.2"
HOMOGENEOUS, KD, SELECTION = f"{S4}, homogeneous objectives", f"{S4}, two-stage KD", "Appendix A.3"
WINDOWS = {"Q=5,p=10": "ConCF"}  # what `reference` has itself
CLAIMS = tuple(Claim(*each) for each in (
    ("statistics", "stats", "Appendix A.1", "The public data, filtered, has the statistics printed.",
     decisions.statistics),
    ("every-head", "main", f"{S4}, main table", "Every head of ConCF beats the best SingleCF (R@50).",
     decisions.every_head),
    ("gain-best", "main", "Main table", "Gain.Best is significant for every metric and data set.", gains("Gain.Best")),
    ("gain-consensus", "main", "Main table", "Gain.Con. is significant for every metric and data set.",
     gains("Gain.Con.")),
    ("all-groups", "groups", FIG5A, "Users gain, however active they are.", decisions.all_groups),
    ("sparse-users", "groups", FIG5A, "The users with the fewest interactions gain the most.", decisions.sparse_users),
    ("single-ensemble", "schemes", FIG5B, "The consensus of SingleCF models is below that of ConCF.",
     below_concf("SingleCF", (CONSENSUS,))),
    ("without-cl", "schemes", FIG5B, "Without consensus learning, heads and consensus stay below ConCF's.",
     below_concf("without CL", (BEST, CONSENSUS))),
    ("heads-without-cl", "schemes", FIG5B,
     "Without consensus learning the heads hardly improve over SingleCF (here: by no more than the run-to-run noise).",
     decisions.heads_hardly),
    ("rc-over-r", "schemes", FIG5B, "The RC-consensus beats the R-consensus in every scheme.",
     in_schemes(CONSENSUS, R_CONSENSUS)),
    ("rc-over-best", "schemes", FIG5B, "The RC-consensus always beats the best head or model.",
     in_schemes(CONSENSUS, BEST)),
    ("r-below-best", "schemes", FIG5B,
     "The R-consensus is sometimes below the best head or model (there on Foursquare).",
     decisions.r_sometimes),
    ("chr-lowest", "schemes", f"{S4}, CHR by scheme", "ConCF has the lowest CHR of the three schemes.",
     decisions.lowest_chr),
    ("per-high", "per", "Section 2.3, Fig. 2a",
     f"Any two objectives hit different items: PER is high (here: {CONSIDERABLE} or more; on average: in part).",
     decisions.high_per),
    ("per-a-e", "per", "Section 2.3",
     "On CiteULike CF-E is better than CF-A and still misses a good part of what CF-A hits.", decisions.e_misses),
    ("chr-objective", "chr", "Section 2.3, CHR", "The objective makes models differ more than start or size do.",
     decisions.objective_most),
    ("chr-size", "chr", "Section 2.3",
     f"On CiteULike the objective's CHR is up to {100 * published.CHR_OVER_SIZE:.0f} % above model size's "
     "(half of that: in part).",
     decisions.over_size),
    ("chr-users", "chr", "Section 2.3, Fig. 2b", f"On CiteULike most users have a CHR above {published.USER_CHR}.",
     decisions.most_users),
    ("consistency-correct", "consistency", FIG4,
     "Correct predictions are more consistent than incorrect ones in every bin of ranks.",
     decisions.more_consistent),
    ("consistency-top", "consistency", FIG4,
     "The higher the rank, the more consistent (from the first bin to the last alone: in part).",
     decisions.consistent_at_the_top),
    ("rc-over-training", "consistency", FIG4,
     "Throughout training the RC-consensus is above the R-consensus (by up to 16 % for all heads).",
     decisions.over_training),
    ("rc-all-heads", "consistency", FIG4, "Consistency helps a consensus of all heads more than one head alone.",
     decisions.all_rise_more),
    ("het-over-homogeneous", "homogeneous", HOMOGENEOUS, "Five objectives beat one objective five times.",
     beats(*(((who, row), ("homogeneous", row)) for who in ("ConCF", NON_VOTING) for row in (BEST, CONSENSUS)))),
    ("homogeneous-over-single", "homogeneous", HOMOGENEOUS, "One objective five times still beats SingleCF.",
     beats(*((("homogeneous", row), ("SingleCF", "multinomial")) for row in (BEST, CONSENSUS)))),
    ("homogeneous-over-pcl", "homogeneous", HOMOGENEOUS, "Rankings teach better than the softmax of PCL.",
     every("homogeneous", ("PCL",))),
    ("kd-teacher", "distillation", KD, "A student of two-stage distillation does not exceed its teacher significantly.",
     decisions.no_better_than_its_teacher),
    ("kd-concf", "distillation", KD, "ConCF beats every student head of two-stage distillation.",
     beats(*((("ConCF", CONSENSUS if student.endswith(CONSENSUS) else BEST), ("distillation", f"{teacher} > {student}"))
              for teacher in ("T1", "T2") for student in STUDENTS))),
    ("balancing", "hyperparameters", TRAINING, "Balancing the heads helps.", every("ConCF", ("without balancing",))),
    ("per-batch", "hyperparameters", TRAINING, "Weights moved at every batch do better than at every epoch.",
     every("ConCF", ("weights per epoch",))),
    ("alpha", "hyperparameters", TRAINING, f"From alpha = 0.01 on results are stable (within {100 * STABLE:.0f} %).",
     stable("alpha=0.01", "alpha=0.1", "alpha=1")),
    ("window", "hyperparameters", TRAINING,
     f"A long enough window of rankings is stable (within {100 * STABLE:.0f} %), a short one is worse.",
     decisions.windows),
    ("all-rankings", "hyperparameters", TRAINING, "Looking back over all epochs is worse than over the last rankings.",
     beats(*(((WINDOWS.get(f"Q={q},p={p}", f"Q={q},p={p}"), CONSENSUS), (f"Q=all,p={p}", CONSENSUS))
              for p in (1, 10, 20) for q in (5, 10)))),
    ("concf-s", "selection", SELECTION, "ConCF-S lies between SingleCF and ConCF.",
     beats((("ConCF-S", BEST), ("SingleCF", BEST)), (("ConCF", BEST), ("ConCF-S", BEST)),
            (("ConCF", CONSENSUS), ("ConCF-S", CONSENSUS)))),
    ("automl", "selection", SELECTION,
     "AutoML is about SingleCF: its best head a little below, its ensemble a little above "
     f"(by {100 * NEAR:.0f} % at most).",
     decisions.about_single),
    ("sharing", "sharing", "Appendix A.4", "Sharing the embeddings alone is best.",
     every("ConCF", ("sharing=full", "sharing=layer", "sharing=none"))),
    ("embeddings", "sharing", "Appendix A.4", "On CiteULike the embeddings are more than 99 % of a model's parameters.",
     decisions.embeddings),
))  # fmt: skip
"""All of them, in the order of the document."""

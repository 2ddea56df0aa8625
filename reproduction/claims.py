"""The claims of the paper's text: `claims.csv` has the sentences and where they are found, `DECIDED_BY` the rules."""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path

from reproduction import decisions
from reproduction.decisions import beats, every, gains, higher_chr, stable
from reproduction.lines import BEST_TESTED, DATASETS, NON_VOTING, SCHEMES
from reproduction.published import BEST, CONSENSUS, HEADS, R_CONSENSUS
from reproduction.verdicts import Claim, Decide

BOTH = (BEST, CONSENSUS)
DECIDED_BY: dict[str, Decide] = {
    "statistics": decisions.statistics,
    "every-head": beats(*((("ConCF", head), ("SingleCF", BEST_TESTED)) for head in HEADS), datasets=DATASETS),
    "gain-best": gains("Gain.Best"),
    "gain-consensus": gains("Gain.Con."),
    "all-groups": decisions.all_groups,
    "sparse-users": decisions.sparse_users,
    "single-ensemble": beats((("ConCF", CONSENSUS), ("SingleCF", CONSENSUS)), datasets=DATASETS),
    "without-cl": beats(*((("ConCF", row), ("without CL", row)) for row in BOTH), datasets=DATASETS),
    "heads-without-cl": decisions.heads_hardly,
    "rc-over-r": beats(*(((scheme, CONSENSUS), (scheme, R_CONSENSUS)) for scheme in SCHEMES), datasets=DATASETS),
    "rc-over-best": beats(*(((scheme, CONSENSUS), (scheme, BEST)) for scheme in SCHEMES), datasets=DATASETS),
    "r-below-best": decisions.r_sometimes,
    "chr-lowest": higher_chr(("SingleCF", "ConCF"), ("without CL", "ConCF")),
    "per-high": decisions.high_per,
    "per-a-e": decisions.e_misses,
    "chr-objective": higher_chr(("SingleCF", "initial conditions"), ("SingleCF", "model sizes")),
    "chr-size": decisions.over_size,
    "chr-users": decisions.most_users,
    "consistency-correct": decisions.more_consistent,
    "consistency-top": decisions.consistent_at_the_top,
    "rc-over-training": decisions.over_training,
    "rc-all-heads": decisions.all_rise_more,
    "consistency-itself": decisions.consistency_itself,
    "het-over-homogeneous": beats(
        *(((v, row), ("homogeneous", row)) for v, row in product(("ConCF", NON_VOTING), BOTH))
    ),
    "homogeneous-over-single": beats(*((("homogeneous", row), ("SingleCF", "multinomial")) for row in BOTH)),
    "homogeneous-over-pcl": every("homogeneous", "PCL"),
    "kd-teacher": decisions.no_better_than_its_teacher,
    "kd-concf": decisions.above_students,
    "balancing": every("ConCF", "without balancing"),
    "per-batch": every("ConCF", "weights per epoch"),
    "alpha": stable("alpha=0.01", "alpha=0.1", "alpha=1"),
    "window": decisions.windows,
    "all-rankings": decisions.all_rankings,
    "concf-s": beats((("ConCF-S", BEST), ("SingleCF", BEST)), *((("ConCF", row), ("ConCF-S", row)) for row in BOTH)),
    "automl": decisions.about_single,
    "sharing": every("ConCF", "sharing=full", "sharing=layer", "sharing=none"),
    "embeddings": decisions.embeddings,
}

with Path(__file__).with_name("claims.csv").open(encoding="utf-8", newline="") as sentences:
    CLAIMS = tuple(Claim(**claim, decide=DECIDED_BY[claim["id"]]) for claim in csv.DictReader(sentences))
"""All of them, in the order of the document."""

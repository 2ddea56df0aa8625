"""The paper's own figures, as it prints them: every table, and what its text says of the figures.

Rows are named as in the measured lines: heads and schemes by their names, data sets in small letters. Where four
figures stand together they are R@20, N@20, R@50, N@50.
"""

from __future__ import annotations

METRICS = ("recall@20", "ndcg@20", "recall@50", "ndcg@50")
HEADS = {"bpr": "CF-A", "cml": "CF-B", "cross-entropy": "CF-C", "squared-error": "CF-D", "multinomial": "CF-E"}
R_CONSENSUS, CONSENSUS, BEST = "R-consensus", "consensus", "best head"

Four = tuple[float, float, float, float]

STATISTICS: dict[str, dict[str, float]] = {
    "citeulike": {"users": 5219, "items": 25181, "events": 125580, "density": 0.00096},
    "ciao": {"users": 7265, "items": 11211, "events": 149141, "density": 0.00183},
    "foursquare": {"users": 19465, "items": 28593, "events": 1115108, "density": 0.00200},
}
"""Table "The statistics of the datasets" (appendix)."""

CHR: dict[str, dict[str, float]] = {
    "initial conditions": {"citeulike": 0.30, "ciao": 0.23, "foursquare": 0.29},
    "model sizes": {"citeulike": 0.32, "ciao": 0.28, "foursquare": 0.38},
    "SingleCF": {"citeulike": 0.56, "ciao": 0.43, "foursquare": 0.54},
}
"""Table "CHR induced by three factors" (Section 2.3): SingleCF is the learning objective."""

SINGLE: dict[str, dict[str, Four]] = {
    "citeulike": {
        "bpr": (0.1411, 0.0870, 0.2513, 0.1160),
        "cml": (0.1551, 0.0892, 0.2851, 0.1231),
        "cross-entropy": (0.1483, 0.0774, 0.2652, 0.1086),
        "squared-error": (0.1739, 0.1011, 0.3132, 0.1375),
        "multinomial": (0.1938, 0.1125, 0.3179, 0.1451),
    },
    "ciao": {
        "bpr": (0.1151, 0.0766, 0.1797, 0.0952),
        "cml": (0.0645, 0.0348, 0.1547, 0.0615),
        "cross-entropy": (0.1182, 0.0784, 0.1814, 0.0964),
        "squared-error": (0.1042, 0.0676, 0.1755, 0.0879),
        "multinomial": (0.0975, 0.0539, 0.1853, 0.0797),
    },
    "foursquare": {
        "bpr": (0.1207, 0.0897, 0.1987, 0.1151),
        "cml": (0.0897, 0.0573, 0.1746, 0.0847),
        "cross-entropy": (0.1123, 0.0786, 0.1939, 0.1052),
        "squared-error": (0.1026, 0.0655, 0.1948, 0.0956),
        "multinomial": (0.1548, 0.1123, 0.2542, 0.1457),
    },
}
"""Table "Recommendation performances" (Section 4), its upper half: SingleCF."""

CONCF: dict[str, dict[str, Four]] = {
    "citeulike": {
        "bpr": (0.2371, 0.1378, 0.3701, 0.1734),
        "cml": (0.2350, 0.1339, 0.3733, 0.1698),
        "cross-entropy": (0.2412, 0.1395, 0.3763, 0.1756),
        "squared-error": (0.2300, 0.1259, 0.3716, 0.1634),
        "multinomial": (0.2418, 0.1407, 0.3721, 0.1750),
        CONSENSUS: (0.2533, 0.1474, 0.3896, 0.1836),
    },
    "ciao": {
        "bpr": (0.1347, 0.0845, 0.2237, 0.1134),
        "cml": (0.1350, 0.0878, 0.2213, 0.1123),
        "cross-entropy": (0.1334, 0.0880, 0.2221, 0.1131),
        "squared-error": (0.1349, 0.0884, 0.2266, 0.1140),
        "multinomial": (0.1367, 0.0881, 0.2248, 0.1137),
        CONSENSUS: (0.1420, 0.0897, 0.2303, 0.1144),
    },
    "foursquare": {
        "bpr": (0.1605, 0.1115, 0.2638, 0.1451),
        "cml": (0.1720, 0.1219, 0.2773, 0.1562),
        "cross-entropy": (0.1639, 0.1125, 0.2782, 0.1495),
        "squared-error": (0.1757, 0.1235, 0.2876, 0.1579),
        "multinomial": (0.1714, 0.1243, 0.2759, 0.1584),
        CONSENSUS: (0.1749, 0.1218, 0.2877, 0.1583),
    },
}
"""Table "Recommendation performances" (Section 4), its lower half: ConCF."""

GAIN_BEST: dict[str, Four] = {
    "citeulike": (0.2477, 0.2507, 0.1705, 0.2061),
    "ciao": (0.1286, 0.1224, 0.2132, 0.1732),
    "foursquare": (0.1072, 0.1069, 0.0854, 0.0872),
}
"""Table "Recommendation performances", Gain.Best: the best SingleCF's objective as a head of ConCF, over that SingleCF.

The best SingleCF is chosen for each metric: on Ciao CF-C at 20 and for N@50, CF-E for R@50.
"""

GAIN_CONSENSUS: dict[str, Four] = {
    "citeulike": (0.3070, 0.3102, 0.2255, 0.2653),
    "ciao": (0.2014, 0.1441, 0.2428, 0.1867),
    "foursquare": (0.1298, 0.0846, 0.1318, 0.0865),
}
"""Table "Recommendation performances", Gain.Con.: the consensus over the best SingleCF."""

CHR_BY_SCHEME: dict[str, dict[str, float]] = {
    "SingleCF": {"citeulike": 0.56, "ciao": 0.43, "foursquare": 0.54},
    "without CL": {"citeulike": 0.42, "ciao": 0.39, "foursquare": 0.51},
    "ConCF": {"citeulike": 0.18, "ciao": 0.10, "foursquare": 0.17},
}
"""Table "CHR by three training schemes" (Section 4.1), of the head of CF-A."""

SCHEME_POINTS: dict[tuple[str, str], dict[str, float]] = {
    ("citeulike", "SingleCF"): {BEST: 0.3179, CONSENSUS: 0.3736},
    ("citeulike", "without CL"): {BEST: 0.3228, CONSENSUS: 0.3747},
    ("citeulike", "ConCF"): {BEST: 0.3763, R_CONSENSUS: 0.3683, CONSENSUS: 0.3896},
    ("ciao", "SingleCF"): {BEST: 0.1853},
    ("ciao", "ConCF"): {BEST: 0.2266, CONSENSUS: 0.2303},
    ("foursquare", "SingleCF"): {BEST: 0.2542},
    ("foursquare", "ConCF"): {BEST: 0.2876, CONSENSUS: 0.2877},
}
"""Figure "Comparison of three schemes" (Section 4.1), R@50: the points that other tables print.

T1 and T2 of the table of two-stage KD, alpha = 0 of the hyperparameters, the main table, and the table of sharing.
"""

HOMOGENEOUS: dict[tuple[str, str], Four] = {
    ("SingleCF", "multinomial"): (0.1938, 0.1125, 0.3179, 0.1451),
    ("PCL", "multinomial#1"): (0.2196, 0.1350, 0.3363, 0.1662),
    ("PCL", "multinomial#2"): (0.2101, 0.1291, 0.3340, 0.1621),
    ("PCL", "multinomial#3"): (0.2133, 0.1295, 0.3471, 0.1644),
    ("PCL", "multinomial#4"): (0.2139, 0.1298, 0.3344, 0.1615),
    ("PCL", "multinomial#5"): (0.2164, 0.1318, 0.3383, 0.1635),
    ("PCL", CONSENSUS): (0.2103, 0.1331, 0.3422, 0.1674),
    ("homogeneous", "multinomial#1"): (0.2236, 0.1369, 0.3479, 0.1689),
    ("homogeneous", "multinomial#2"): (0.2227, 0.1400, 0.3458, 0.1718),
    ("homogeneous", "multinomial#3"): (0.2282, 0.1389, 0.3495, 0.1702),
    ("homogeneous", "multinomial#4"): (0.2266, 0.1400, 0.3486, 0.1712),
    ("homogeneous", "multinomial#5"): (0.2256, 0.1378, 0.3441, 0.1682),
    ("homogeneous", CONSENSUS): (0.2321, 0.1407, 0.3521, 0.1731),
}
"""Table "Comparison with homogeneous learning objectives" (Section 4.1)."""

DISTILLATION: dict[str, float] = {
    "T1": 0.3179,
    "T2": 0.3736,
    "T1 > SingleCF": 0.3207,
    "T2 > SingleCF": 0.3672,
    "T2 > ConCF best head": 0.3704,
    "T2 > ConCF consensus": 0.3750,
}
"""Table "R@50 comparison with two-stage KD" (Section 4.1); its last row is ConCF of the main table."""

HYPERPARAMETERS: dict[str, tuple[float, float]] = {
    "without balancing": (0.3453, 0.3575),
    "alpha=0": (0.3228, 0.3747),
    "alpha=0.01": (0.3763, 0.3896),
    "alpha=0.1": (0.3712, 0.3836),
    "alpha=1": (0.3719, 0.3823),
    "Q=all,p=1": (0.3632, 0.3661),
    "Q=all,p=10": (0.3648, 0.3685),
    "Q=all,p=20": (0.3660, 0.3664),
    "Q=5,p=1": (0.3579, 0.3691),
    "Q=5,p=10": (0.3772, 0.3872),
    "Q=5,p=20": (0.3763, 0.3896),
    "Q=10,p=1": (0.3708, 0.3829),
    "Q=10,p=10": (0.3781, 0.3907),
    "Q=10,p=20": (0.3779, 0.3865),
}
"""Table "R@50 comparison with different hyperparameters" (appendix): best head, consensus."""

SELECTION: dict[tuple[str, str], Four] = {
    ("ConCF", BEST): (0.2412, 0.1395, 0.3763, 0.1756),
    ("ConCF", CONSENSUS): (0.2533, 0.1474, 0.3896, 0.1836),
    ("ConCF-S", BEST): (0.2158, 0.1255, 0.3487, 0.1601),
    ("ConCF-S", CONSENSUS): (0.2309, 0.1351, 0.3638, 0.1750),
    ("AutoML", BEST): (0.1758, 0.1032, 0.3039, 0.1371),
    ("AutoML", CONSENSUS): (0.1993, 0.1204, 0.3216, 0.1529),
}
"""Table "Performance comparison with loss function selection and AutoML approach" (appendix)."""

SHARING: dict[str, tuple[float, float, float]] = {
    "sharing=full": (0.3515, 0.3512, 0.3688),
    "sharing=layer": (0.3702, 0.3618, 0.3805),
    "ConCF": (0.3763, 0.3683, 0.3896),
    "sharing=none": (0.3662, 0.3617, 0.3836),
}
"""Table "R@50 comparison of different parameter sharing" (appendix): best head, R-con, RC-con; ConCF shares
the embeddings.
"""

PER_A_E = 0.35
"""Section 2.3 on CiteULike: of what CF-A hits, CF-E misses 35 %."""

E_OVER_A = 0.26
"""Section 2.3 on CiteULike: CF-E performs 26 % higher than CF-A (R@50)."""

CHR_OVER_SIZE = 0.75
"""Section 2.3 on CiteULike: the CHR of the objectives is up to 75 % higher than that of the model sizes."""

USER_CHR = 0.4
"""Section 2.3 on CiteULike: most users have a CHR larger than 0.4."""

RC_OVER_R = 0.16
"""Section 3.2 on CiteULike: the RC-consensus of all heads is up to 16 % more accurate than the R-consensus."""

EMBEDDINGS = 0.99
"""Appendix on CiteULike: the embeddings are more than 99 % of a model's parameters."""

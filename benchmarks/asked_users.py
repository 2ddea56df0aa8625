"""What it costs users that the voters were not asked for them: the lines of a table in docs/scale.md.

    python benchmarks/asked_users.py              # prints the table, too

On logs so small that the consensus of all validated users is known. The student is taught by the cross-fitted lists of
a share of them; recall@50 on validation of a quarter of them who never teach: by the student as it ranks for users who
were not asked, beside the consensus and the better ALS. Nothing is refitted, and the test part is not looked at. Budget
`fast`, seed 0. What is in the results is not measured again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from measuring import RESULTS

from concf.baselines.als import UserSolver
from concf.comparison.results_log import ResultsLog
from concf.data.split import Split
from concf.evaluation.scorers import Factors
from concf.evaluation.validation import Validation
from concf.runtime.executors import one_thread_each
from concf.strong.recipe import Recipe
from concf.strong.run import StrongRun
from concf.strong.search import measured
from concf.strong.settings import STUDENT, StrongSettings
from concf.strong.students import without_lists

LOGS = {"citeulike": "released", "ciao": "released", "foursquare": "released", "gowalla": "given"}
SHARES = (0.75, 0.3, 0.1)
CPU = torch.device("cpu")


def prepared(name: str) -> Split:
    from concf.data.prepare import prepare

    return prepare(name, protocol=LOGS[name], seed=0, valid=0.05 if LOGS[name] == "given" else None)


def measure(name: str) -> dict[str, object]:
    """Consensus, ALS and, by the share of the users who are asked, the student: of users who never teach."""
    data, settings = prepared(name), StrongSettings(budget="fast", refit="none")
    recipe = Recipe(StrongRun(data, settings, 0, CPU))
    for number, stage in enumerate(recipe.stages):
        recipe.stage(number)
        if stage == "student":
            break
    lists, users, start = recipe._cross_fitted(), recipe.validation.users, recipe._start()
    order = torch.randperm(len(users), generator=torch.Generator().manual_seed(0))
    never = order[-(len(users) // 4) :].sort().values
    judged = Validation(data, recipe.run.metric, CPU, validated=users[never].numpy())

    def figure(user: torch.Tensor, item: torch.Tensor) -> float:
        return round(measured(Factors(user, item), recipe.seen(data.train), judged), 4)

    line: dict[str, object] = {
        "users": data.train.shape[0], "items": data.train.shape[1], "validated": len(users),
        "consensus": round(judged.of_its_users(lists[never]), 4), "als": figure(*recipe.vectors["als-a"]),
    }  # fmt: skip
    with one_thread_each():
        for share in SHARES:
            rows = order[: int(share * len(users))].sort().values
            recipe._distil(data.train, users[rows], lists[rows], start, recipe.plan.student[0])
            taught, item = recipe.vectors[STUDENT]
            alone = UserSolver(item, **recipe.chosen["als-a"])(recipe._pairs(data.train), data.train.shape[0])
            voters = [user for head, (user, _) in recipe.vectors.items() if head != STUDENT]
            line[f"student {share}"] = figure(without_lists(alone, taught, voters, users[rows]), item)
            line[f"asked {share}"] = len(rows)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="*", default=list(LOGS), choices=list(LOGS))
    options = parser.parse_args()
    log = ResultsLog(options.results / "asked-users.jsonl")
    for name in options.only:
        key = {"data": name}
        line = log.find(key) or log.add(key, measure(name))
        taught = [f"{line[f'student {share}']:.4f} ({line[f'asked {share}']:,})" for share in SHARES]
        print(
            "|",
            " | ".join([name, f"{line['als']:.4f}", *reversed(taught), f"{line['consensus']:.4f}"]),
            "|",
            flush=True,
        )


if __name__ == "__main__":
    main()

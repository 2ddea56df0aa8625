"""Plant 46 bugs, one at a time, and see whether the tests notice: `python tools/planted_bugs.py [--only N ...]`.

Each bug is planted in a copy of `src` in a temporary folder, and pytest runs the few files that should fail. A bug is
missed where these pass or take longer than --limit. The last line says how many of the bugs were caught. Run this
before and after tests are cut.

The functions were drawn by a seed (`--draw`), of each room in proportion to its lines. Code is found wherever it is
moved to. Where it is rewritten, rewrite its row of BUGS; where a drawn function is deleted, take the one that the draw
puts in its place.

When the list was made, 35 of the 48 were caught. Tests were added for the other 13 (numbers 1, 2, 6, 8, 9, 11, 14, 18,
30, 40, 41, 45, 46); since then all 48 are.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "concf"
SEED, FUNCTIONS = 36, 48
SHORTEST = 4  # lines of a function without its docstring
LEFT_OUT = (  # of the draw: rooms and files that other work rewrites
    "model/rows.py", "model/kernels.py", "model/triton_kernels.py", "runtime/text_tables.py",
    "service/problems.py", "service/server.py", "training/head_losses.py HeadLosses.reads_all",
)  # fmt: skip


class Bug(NamedTuple):
    """One change of a function's code: `old`, which must occur once in the package, becomes `new`."""

    file: str  # where the function was when it was drawn; code that was moved is found all the same
    function: str
    old: str
    new: str
    breaks: str
    tests: str  # names of test files, without test_ and .py


BUGS = [
    Bug(
        "__init__.py", "__getattr__",
        "raise AttributeError(f\"module 'concf'", "raise KeyError(f\"module 'concf'",
        "hasattr(concf, name) fails for an unknown name", "architecture",
    ),
    Bug(
        "cli/data.py", "_print_statistics",
        "f\"{row['density']:.3%}\"", "f\"{row['density']:.3f}%\"",
        "densities are a hundredth of what they are", "cli",
    ),
    Bug(
        "cli/demo.py", "demo",
        "report['p'] > 0.05", "report['p'] < 0.05",
        "significant gains are said to be chance", "demo",
    ),
    Bug(
        "cli/recommend.py", "_limits",
        "limits[column] = int(number)", "limits = {column: int(number)}",
        "of several --at-most only the last counts", "rules",
    ),
    Bug(
        "consensus/features.py", "HeadFeatures.__call__",
        "_powers(inner[..., :-1].mul_(valid[:, None]))", "_powers(inner[..., :-1])",
        "the padding of short histories counts as similar items", "features",
    ),
    Bug(
        "consensus/fusion.py", "scores_of",
        "scores.masked_fill(voter.lists < 0, 0.0)", "scores.masked_fill(voter.lists <= 0, 0.0)",
        "the first item of the catalogue has score 0 in fusions", "fusion",
    ),
    Bug(
        "consensus/stacking.py", "_slope",
        ", 2 * training.penalty * away", ", training.penalty * away",
        "the gradient of the penalty is half of what it is", "reranker",
    ),
    Bug(
        "data/catalogue.py", "_check",
        "(EOFError, BadGzipFile, zlib.error)", "(EOFError, BadGzipFile)",
        "a damaged archive ends in a traceback", "catalogue",
    ),
    Bug(
        "data/prepare.py", "write_parts",
        "return np.isin(origin(self.parts), [", "return np.isin(self.parts, [",
        "held-out pairs that cannot be evaluated are not written", "protocols",
    ),
    Bug(
        "data/reading/read.py", "check_times",
        "<= newest <= latest * ticks", "<= newest <= LATEST * ticks",
        "times in the future are read without a word", "times",
    ),
    Bug(
        "data/reading/objects.py", "_of_rows",
        "length == 3 and all(isinstance", "length == 3 and any(isinstance",
        "one large count is taken for a time, and the list is refused", "habits",
    ),
    Bug(
        "data/reading/read.py", "_pairs",
        "np.float64 if schema[name].is_float() else np.int64", "np.int64",
        "ratings and fractions of seconds lose their decimals", "read",
    ),
    Bug(
        "data/simulate.py", "Simulation.draw",
        '{"user_id": user[order],', '{"user_id": user,',
        "users have the items of others", "simulate",
    ),
    Bug(
        "data/split.py", "Split.disliked",
        "log.dislikes.timestamp < first[", "log.dislikes.timestamp <= first[",
        "dislikes at the time of the first held-out pair are known in training", "dislikes",
    ),
    Bug(
        "data/split.py", "Split.hash",
        "np.where(self.parts >= UNEVALUATED, 3, self.parts)", "self.parts",
        "one split has several hashes, by the form it was read in", "protocols",
    ),
    Bug(
        "evaluation/metrics.py", "hits",
        "(known[at] == keys) & (lists >= 0) if", "(known[at] == keys) if",
        "an empty place of a list may count as a hit", "metrics",
    ),
    Bug(
        "cli/demo_run.py", "run",
        '"validation": learned.best[name].validation', '"validation": learned.best[CONSENSUS].validation',
        "every head has the validation figure of the consensus", "demo",
    ),
    Bug(
        "cli/demo_run.py", "run",
        "[METRIC] / rival.mean(METRIC) - 1", "[METRIC] / rival.mean(METRIC)",
        "the gain over the best baseline is 100 % too high", "demo",
    ),
    Bug(
        "inference/bulk.py", "Lists.model",
        "return model if self.new_items is None else model.add_items(self.new_items)", "return model",
        "bulk lists of several workers have no new items", "new_items",
    ),
    Bug(
        "inference/contributions.py", "speakers",
        "if share > 0]", "if share >= 0]",
        "items that say nothing for a recommendation are given as its reasons", "contributions",
    ),
    Bug(
        "inference/estimator.py", "ConCF.__init__",
        "choose_settings(preset, settings), check_seed", "choose_settings(DEFAULT, settings), check_seed",
        "ConCF(preset=...) trains the default preset", "habits",
    ),
    Bug(
        "inference/ranker.py", "highest",
        "np.flatnonzero(scores >= np.partition(", "np.flatnonzero(scores > np.partition(",
        "lists lack their last item, or all of them where scores tie", "service_lists",
    ),
    Bug(
        "inference/recommender.py", "Recommender.ranker",
        'raise ConfigError("nothing was learned yet', 'raise RuntimeError("nothing was learned yet',
        "an estimator that was not fitted ends in a traceback", "estimator",
    ),
    Bug(
        "inference/rules/conditions.py", "group",
        ".fill_null(0) - 1", ".fill_null(1) - 1",
        "--at-most counts items without a value as the first group", "rules",
    ),
    Bug(
        "model/als.py", "UserSolver.__call__",
        "(side.weight + self.unobserved * items)", "(side.weight + self.unobserved)",
        "new users are regularised less than known ones", "fold_in",
    ),
    Bug(
        "model/feature_map.py", "FeatureMap.learn",
        "gains[best].std() / np.sqrt(len(rows))", "gains[best].std()",
        "features of items are ignored although they predict", "new_items",
    ),
    Bug(
        "model/objectives.py", "_multinomial",
        "weight / weight.sum().clamp(min=1)", "weight / 1",
        "the setting loss.likelihood is ignored", "losses",
    ),
    Bug(
        "model/walks.py", "Walks.__call__",
        "@ from_item.matrix @ from_user.matrix)", "@ from_user.matrix.T @ from_user.matrix)",
        "walks do not leave an item by its degree", "recipe_parts",
    ),
    Bug(
        "report/gather.py", "_about",
        'float(sum(record["seconds"] + record.get("ranking_seconds", 0.0)', 'float(sum(record["seconds"]',
        "the report's time of training leaves out the rankings", "report",
    ),
    Bug(
        "report/gather.py", "_curve",
        'if kind != "consensus_loss" or value:', "if True:",
        "the consensus loss is drawn as 0 before there is a target", "report",
    ),
    Bug(
        "runtime/arguments.py", "_integer",
        "not isinstance(value, Integral) or isinstance(value, bool)", "not isinstance(value, Integral)",
        "True is taken for the number 1", "arguments",
    ),
    Bug(
        "runtime/files.py", "refuse_changed",
        "if field is None or digest != field[1].decode()", "if field is not None and digest != field[1].decode()",
        "a checkpoint without its checksum is read", "sealed",
    ),
    Bug(
        "runtime/provenance.py", "_git",
        "timeout=5, check=True", "timeout=5, check=False",
        "outside a repository the commit is an empty text", "cli",
    ),
    Bug(
        "service/answers.py", "lists",
        "if recommender.user_ids.place(user) < 0]", "if recommender.user_ids.place(user) <= 0]",
        "the service says that the first user of the log is unknown", "service_lists",
    ),
    Bug(
        "service/answers.py", "unknown_items",
        "if ids.place(item) < 0)", "if ids.place(item) <= 0)",
        "the service reports the first item of the log as unknown", "unknown_items",
    ),
    Bug(
        "service/explorer/view.py", "Explorer.attributes",
        ".drop(catalogue.roles())", "",
        "the explorer offers ids and titles as attributes", "explorer_attributes",
    ),
    Bug(
        "training/checkpoint.py", "RunFolder._write_card",
        "if not path.exists() or path.read_bytes() != card:", "if not path.exists():",
        "the model card stays that of the first checkpoint", "model_card",
    ),
    Bug(
        "training/checkpoint.py", "RunFolder.data",
        "str(self.own_data) if self.own_data.is_dir()", "self.own_data.name if self.own_data.is_dir()",
        "the data set in a run's folder is found from inside that folder alone", "estimator",
    ),
    Bug(
        "training/combining/combine.py", "_made",
        "log if data.disliked is None else csr_array(log + data.disliked)", "log",
        "a combined run recommends what users dislike", "dislikes",
    ),
    Bug(
        "training/config/presets.py", "_with_nones",
        'value.lower() == "none"', 'value == "none"',
        "None in a settings file is refused", "presets",
    ),
    Bug(
        "reference/head_losses.py", "HeadLosses._pair_scores",
        "self.objectives[name].score(scores)", "scores",
        "CF-B trains on the squared distance whatever its settings say", "train",
    ),
    Bug(
        "training/recipe/combine.py", "Combine._rerank",
        'return record | {"fusions": fused}', 'return record | {"fusions": self.fused}',
        "the consensus is not compared with the fusions", "combine",
    ),
    Bug(
        "training/recipe/combine.py", "Combine._start",
        "als.fit(als.start(self._seed(1)), **students.SOLVED_BY, sweeps=FIRST_SWEEPS)",
        "als.fit(als.start(self._seed(1)), **students.SOLVED_BY, sweeps=0)",
        "the student of given voters begins with random vectors", "combine",
    ),
    Bug(
        "training/recipe/update.py", "Update.load_state_dict",
        'self.known, self.fresh = tuple(state["known"]), state["fresh"]', 'self.fresh = state["fresh"]',
        "an update that was killed and resumed ends elsewhere", "update",
    ),
    Bug(
        "training/train.py", "train",
        'before.get("seed", 0) if seed is None', "0 if seed is None",
        "a resumed run takes seed 0 instead of its own", "recipe",
    ),
    Bug(
        "training/trainer.py", "Trainer.load_state_dict",
        'self.balance.initial.copy_(state["initial"])', 'self.balance.initial.copy_(state["weights"])',
        "a resumed run balances its heads by wrong initial losses", "checkpoint",
    ),
]  # fmt: skip


def functions(text: str) -> list[tuple[str, int]]:
    """Functions of a file (`Class.method`), each with its lines without the docstring."""
    tree = ast.parse(text)
    owners: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    owners += [(f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef)]
    found = []
    for prefix, owner in owners:
        for node in owner.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if ast.get_docstring(node) is not None:
                    lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
                found.append((prefix + node.name, lines))
    return found


def draw() -> list[tuple[str, str]]:
    """Draw (file, function): of each folder in proportion to its lines, at least one.

    Functions are ordered by a random number that depends on their names alone, so that the others of a folder stay
    drawn when one of them is deleted.
    """
    rooms: dict[str, list[tuple[str, str]]] = {}
    lines: dict[str, int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        file, text = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
        if file.startswith(LEFT_OUT):
            continue
        room = file.split("/")[0] if "/" in file else ""
        lines[room] = lines.get(room, 0) + len(text.splitlines())
        rooms.setdefault(room, []).extend(
            (file, name)
            for name, length in functions(text)
            if length >= SHORTEST and not f"{file} {name}".startswith(LEFT_OUT)
        )
    share = {room: FUNCTIONS * lines[room] / sum(lines.values()) for room in rooms}
    count = {room: max(1, int(share[room])) for room in rooms}
    for room in sorted(rooms, key=lambda room: count[room] - share[room]):
        count[room] += sum(count.values()) < FUNCTIONS

    def place(function: tuple[str, str]) -> float:
        return random.Random(f"{SEED} {function[0]} {function[1]}").random()

    return [each for room in sorted(rooms) for each in sorted(sorted(rooms[room], key=place)[: count[room]])]


def planted(bug: Bug) -> tuple[Path, str]:
    """The file that has the bug's code, relative to the package, and its text with the bug; fails if there are none."""
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    found = {path: text.count(bug.old) for path, text in texts.items() if bug.old in text}
    if sum(found.values()) != 1:
        raise SystemExit(f"{bug.file}, {bug.function}: {bug.old!r} occurs {sum(found.values())} times, expected once")
    (path,) = found
    changed = texts[path].replace(bug.old, bug.new)
    ast.parse(changed)
    return path.relative_to(PACKAGE), changed


def first_failure(source: Path, tests: list[str], limit: float) -> str | None:
    """The first of the tests that fails with the package in a folder; None if all pass. Fails where they cannot run."""
    env = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(source)}
    where = [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('concf').origin)"]
    if str(source) not in subprocess.check_output(where, env=env, text=True):
        raise SystemExit("concf is not imported from PYTHONPATH: use an environment where nothing stands before it")
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=limit)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also servers and workers that the tests have started
        process.wait()
    failed = [line.split(" ", 1)[1] for line in out.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if process.returncode not in (0, 1) or (process.returncode == 1 and not failed):
        raise SystemExit(f"pytest could not run {' '.join(tests)}\n{out[-3000:]}")
    return failed[0].split(" - ")[0] if failed else None


def noticed(bug: Bug, limit: float) -> tuple[str, float]:
    """The first test that fails with the bug and passes without it, or `missed` and why; and the seconds."""
    begin = time.monotonic()
    try:
        with TemporaryDirectory() as folder:
            shutil.copytree(PACKAGE, Path(folder, "concf"), ignore=shutil.ignore_patterns("__pycache__"))
            file, text = planted(bug)
            Path(folder, "concf", file).write_text(text, encoding="utf-8")
            failed = first_failure(Path(folder), [f"tests/test_{name}.py" for name in bug.tests.split()], limit)
        found = failed or "missed"
        if failed and first_failure(PACKAGE.parent, [failed], limit):
            found = f"missed: {failed} fails without the bug too"
    except subprocess.TimeoutExpired:
        found = f"missed: {limit:g} s were not enough"
    return found, time.monotonic() - begin


def main() -> None:
    """Plant the bugs, or print the draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="numbers of bugs, from 1")
    parser.add_argument("--jobs", type=int, default=1, help="bugs at a time")
    parser.add_argument("--limit", type=float, default=120, help="seconds for the tests of one bug; 120 by default")
    parser.add_argument("--draw", action="store_true", help="print the drawn functions and stop")
    given = parser.parse_args()
    if given.draw:
        print("\n".join(f"{file}  {function}" for file, function in draw()))
        return
    numbers = given.only or range(1, len(BUGS) + 1)
    bugs = [BUGS[number - 1] for number in numbers]
    for bug in bugs:
        planted(bug)  # all are there before the first is tried
    begin, caught = time.monotonic(), 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for number, bug, (by, seconds) in zip(numbers, bugs, pool.map(noticed, bugs, repeat(given.limit)), strict=True):
            caught += not by.startswith("missed")
            print(
                f"{number:2}  {seconds:5.0f} s  {bug.file} {bug.function}: {bug.breaks}\n              {by}", flush=True
            )
    print(f"{caught} of {len(bugs)} caught in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()

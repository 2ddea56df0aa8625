"""The model card of a run: its data, metrics, settings and limits, and how to load it.

The card is made from the checkpoint alone, without times or paths: that of a resumed run is no different.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from concf.data.split import FEW_USERS
from concf.runs.run import Run
from concf.runtime.provenance import VERSION
from concf.runtime.text_tables import markdown, settings_line

AT_RANDOM = ("random", "released", "paper", "new-users")


def model_card(run: Run) -> str:
    """Write the card as Markdown."""
    sections = {
        "Data": _data(run),
        "Metrics": _metrics(run),
        "Settings": _settings(run),
        "Limits": "".join(f"- {limit}\n" for limit in _limits(run)),
        "How to load it": _loading(run),
    }
    name = _safe(run.data.recipe.source.get("name", "a log"))
    done = f"{run.epoch} {run.unit}"
    state = f"Finished after {done}." if run.finished else f"**Not finished**: {done} so far."
    by = f"Written by concf {VERSION}, and again whenever the run goes on."
    top = f"# Recommender trained on {name}\n\n{state} {by}\n"
    return "\n".join([top, *(f"## {title}\n\n{text}" for title, text in sections.items())])


def _data(run: Run) -> str:
    data, recipe = run.data.whole or run.data, run.data.recipe
    sizes, parts = data.interactions.statistics(), data.counts()
    protocol = recipe.protocol.model_dump(mode="json", exclude={"name"}, exclude_none=True)
    rows = {
        "source": recipe.source.get("name", ""),
        "SHA-256 of the source": _hash(recipe.source.get("sha256", {})),
        "split hash": data.hash,
        "users, items, pairs": f"{sizes['users']:,}, {sizes['items']:,}, {sizes['interactions']:,}",
        "filters": "; then ".join(each.describe() for each in recipe.filters) or "none",
        "protocol": f"{recipe.protocol.name} ({settings_line(protocol | {'seed': recipe.seed})})",
        "pairs to train, validate, test": f"{parts['train']:,}, {parts['valid']:,}, {parts['test']:,}",
    }
    for number, log in enumerate(run.updates, 1):
        dropped = f", {log['dropped']:,} older ones dropped" if log["dropped"] else ""
        checksum = _hash(log.get("sha256", {}))
        rows[f"update {number}"] = f"{log['name']}: {log['pairs']:,} new pairs{dropped}; SHA-256 {checksum}"
    return markdown(["", ""], [[name, _safe(value)] for name, value in rows.items()])


def _metrics(run: Run) -> str:
    if not run.best:
        return "None yet.\n"
    summary = run.summary()
    epochs, metric = run.unit == "epochs", summary["metric"]
    last = "best epoch" if epochs else "chosen on validation"
    rows = [
        [_safe(each["name"]), _safe(each["objective"] or ""), f"{each['validation']:.4f}",
         str(each["epoch"]) if epochs else settings_line(each["chosen"]) if each["chosen"] else ""]
        for each in summary["recommenders"]
    ]  # fmt: skip
    learned = "validated on, and learned in the end" if run.chosen_late else "learned from as well"
    tested = learned if "test" in run.learned else "not looked at: `concf evaluate` measures on it"
    carried = " of the run before the update" if summary["carried_validation"] else ""
    return (
        f"Validation {metric}{carried}, the mean over {summary['validated_users']:,} users. The best head is "
        f"{_safe(summary['best_head'])}: {_safe(summary['why_best_head'])}. The test part, of "
        f"{summary['tested_users']:,} users, was {tested}.\n\n"
        + markdown(["recommender", "objective", metric, last], rows)
    )


def _settings(run: Run) -> str:
    """Describe the training in a few sentences, with a row for each setting that differs from the preset."""
    preset, changes = run.settings.nearest_preset()
    way = f"{run.method()} Heads: {_safe(', '.join(run.heads))}. Seed {run.seed}."
    if not changes:
        return f"{way} All settings are those of the preset `{preset}`.\n"
    rows = [[f"`{name}`", *map(_safe, values)] for name, values in changes.items()]
    table = markdown(["", "value", "in the preset"], rows)
    return f"{way} The settings of the preset `{preset}`, except for:\n\n{table}"


def _limits(run: Run) -> Iterator[str]:
    sizes, validated = run.data.interactions.statistics(), run.validated_users
    yield f"It learned from {sizes['users']:,} users and {sizes['items']:,} items; later interactions are not in it."
    yield "A pair that is not in the log counts as not chosen, whether the user disliked the item or never saw it."
    yield "Validation metrics chose epochs and settings, so they are optimistic: only test metrics are on unseen pairs."
    if run.data.recipe.protocol.name in AT_RANDOM:
        yield "Held-out pairs were drawn at random and not by time: metrics say little about how tastes will drift."
    yield from (f"Note: {_safe(note)}." for note in run.notes)
    if validated < FEW_USERS:
        yield f"Metrics and choices are based on only {validated:,} validated users, and are uncertain."
    if run.consensus_users is not None:
        yield f"The consensus was computed for {run.consensus_users:,} users; the best head ranks for the others."
    if run.updates:
        yield f"It was updated {len(run.updates)} times. Metrics are of new pairs, measured before they were learned."
    elif "valid" in run.learned and run.finished:
        yield "Metrics were measured before the refit; the refitted model has learned from more pairs."
    if "test" in run.learned:
        yield "It was refitted on the test part too: there is nothing left to test it on."


def _loading(run: Run) -> str:
    if not run.finished:
        return "Finish it first. In this folder: `concf train --resume --out .`\n"
    evaluate = "" if "test" in run.learned else "concf evaluate .\n"
    shell = f"{evaluate}concf recommend . --users all -k 10 --out lists.parquet"
    python = 'import concf\n\nmodel = concf.Recommender.load(".")\nmodel.recommend(model.user_ids.values[:3], k=10)'
    where = "It needs its data set, which has the split hash above; if that has moved: `--data DIR`, or `data=DIR`.\n"
    return f"In this folder, by concf {VERSION}:\n\n```\n{shell}\n```\n\n```python\n{python}\n```\n\n{where}"


def _hash(files: dict[str, str]) -> str:
    """Write the SHA-256 of one file, or the number of several."""
    return f"of {len(files)} files, in `run.json`" if len(files) > 1 else "".join(files.values()) or "not known"


def _safe(value: Any) -> str:
    """Text that cannot break a table or become HTML."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")

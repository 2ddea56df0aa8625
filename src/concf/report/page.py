"""The figures of a run as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.report.charts import Line, Row, intervals, lines, looks, plain, swatch
from concf.report.examples_shown import shown_examples
from concf.report.markup import Safe, joined, tag, text
from concf.report.style import STYLE
from concf.report.tables import facts, table
from concf.runtime.provenance import VERSION

NAMES = {"recall": "Recall", "ndcg": "NDCG", "precision": "Precision", "map": "MAP", "mrr": "MRR", "hit": "Hit"}
TABLE_ROWS = 200  # of the table behind a chart
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # whatever an id or a title says, nothing is run or loaded


def page(found: Mapping[str, Any]) -> str:
    """The page of what `gather` found."""
    parts = [
        ("figures", "Figures", _figures(found)),
        ("course", "Course of training", _course(found)),
        ("complementarity", "What one knows and another does not", _complementarity(found)),
        ("groups", "By how active users are", _groups(found)),
        ("examples", "Example users", shown_examples(found)),
        ("about", "Data, settings, machine", _about(found)),
    ]
    shown = [(key, title, body) for key, title, body in parts if body]
    links = [tag("li", tag("a", title, href=f"#{key}")) for key, title, _ in shown]
    notes = [tag("p", note, class_="note") for note in found["notes"]]
    sections = [
        tag("section", tag("h2", title, id=f"{key}-head"), body, id=key, aria_labelledby=f"{key}-head")
        for key, title, body in shown
    ]
    title = f"{found['run']['name']} · concf"
    head = tag(
        "head", tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        Safe(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/>'),
        tag("meta", name="generator", content=f"concf {VERSION}"), tag("title", title), tag("style", Safe(STYLE)),
    )  # fmt: skip
    top = tag("header", tag("h1", found["run"]["name"]), tag("p", _lead(found), class_="lead"), _tiles(found), *notes,
              tag("nav", tag("ul", *links), aria_label="Parts of this report"))  # fmt: skip
    end = tag("footer", f"Written by concf {VERSION}: concf report.")
    body = tag("body", top, tag("main", *sections), end)
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def metric_name(metric: str) -> str:
    """`recall@50` -> `Recall@50`."""
    name, _, n = metric.partition("@")
    return f"{NAMES.get(name, name)}@{n}"


def _lead(found: Mapping[str, Any]) -> str:
    run, data = found["run"], found["data"]
    state = "finished" if run["finished"] else "not finished"
    return f"{data['source']}, protocol {data['protocol']}. Seed {run['seed']}, {state} after {run['epochs']} epochs."


def _tiles(found: Mapping[str, Any]) -> Safe:
    """What to know at a glance."""
    run, data = found["run"], found["data"]
    by_name = {each["name"]: each for each in found["recommenders"]}
    tiles = [_headline(by_name[name], found) for name in dict.fromkeys((run["shown"], run["best_head"]))]
    size = joined(f"{data['users']:,} × {data['items']:,}", tag("small", f"{data['interactions']:,} interactions"))
    pace = joined(f"{run['epochs']}", tag("small", f"of at most {run['at_most']}; {_duration(run['seconds'])}"))
    tiles += [("Users × items", size), ("Epochs", pace)]
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value), class_="tile") for name, value in tiles),
               class_="tiles")  # fmt: skip


def _headline(one: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, Safe]:
    """A recommender's main figure: on the test part, or where there is none on validation."""
    figure = found["figures"][1]
    best = "Best head" if one["head"] else "Consensus"
    if one["test"] is None:
        return f"{best}, validation", joined(f"{one['validation']:.4f}", tag("small", one["name"]))
    value = one["test"][figure]
    between = f"{value['low']:.4f} to {value['high']:.4f}"
    said = f"{one['name']}; {between}" if one["head"] else between
    return f"{best}, test {metric_name(figure)}", joined(f"{value['mean']:.4f}", tag("small", said))


def _words(said: str) -> Safe:
    return tag("p", said, class_="soft")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def _looks(found: Mapping[str, Any]) -> dict[str, str]:
    return looks(found["run"]["heads"], (R_CONSENSUS, CONSENSUS))


def _legend(found: Mapping[str, Any], names: Sequence[str]) -> Safe:
    look = _looks(found)
    return tag("ul", *(tag("li", swatch(look[name]), name) for name in names), class_="legend")


def _figures(found: Mapping[str, Any]) -> Safe:
    rows, figures = found["recommenders"], found["figures"]
    if rows[0]["test"] is None:
        return joined(_validation_alone(found))
    words = _words(
        f"Means over {found['data']['evaluated_users']:,} users, each recommender at the epoch of its own best "
        f"validation (of {found['run']['validated_users']:,} users). Below each mean is the 95 % bootstrap interval "
        "over users. The best of a column is bold."
    )
    charts = tag("div", *(_interval_chart(found, figure) for figure in (figures[1], figures[3])), class_="charts")
    return joined(words, _figure_table(found, "test"), charts, _figure_table(found, "valid"))


def _validation_alone(found: Mapping[str, Any]) -> Safe:
    metric = metric_name(found["run"]["metric"])
    rows = [[each["name"], f"{each['validation']:.4f}", each["epoch"]] for each in found["recommenders"]]
    return table(["", f"validation {metric}", "best epoch"], rows)


def _figure_table(found: Mapping[str, Any], on: str) -> Safe:
    figures, rows = found["figures"], []
    top = {figure: max(each[on][figure]["mean"] for each in found["recommenders"]) for figure in figures}
    for each in found["recommenders"]:
        name = joined(each["name"], tag("small", "best head") if each["name"] == found["run"]["best_head"] else None)
        cells = [_with_interval(each[on][figure], each[on][figure]["mean"] == top[figure]) for figure in figures]
        rows.append([name, *cells, each["epoch"]])
    rule = sum(each["head"] for each in found["recommenders"])
    title = {"test": "Test part", "valid": "Validation part"}[on]
    return table(["", *map(metric_name, figures), "best epoch"], rows, caption=title, rule=rule)


def _with_interval(figure: Mapping[str, float], best: bool) -> Safe:
    mean = tag("span", f"{figure['mean']:.4f}", class_="best" if best else None)
    return joined(mean, tag("small", f"{figure['low']:.4f} to {figure['high']:.4f}"))


def _interval_chart(found: Mapping[str, Any], figure: str) -> Safe:
    look, name = _looks(found), metric_name(figure)
    values = [(each["name"], each["test"][figure]) for each in found["recommenders"]]
    rows = [Row(who, look[who], each["mean"], each["low"], each["high"]) for who, each in values]
    best = max(values, key=lambda each: each[1]["mean"])[0]
    about = f"Test {name} of {len(rows)} recommenders with 95 % intervals; {best} has the highest."
    chart = intervals(f"interval-{figure.replace('@', '-')}", f"Test {name}", about, rows)
    words = "Mean over users and its 95 % interval. The scale does not begin at 0."
    return tag("figure", tag("figcaption", tag("h3", f"Test {name}"), tag("p", words)), chart)


COURSE = (  # curve, title, what it is, unit: shares, values beside the first, or values
    ("validation", "Validation", "{metric} at every ranking. Marked: the best epoch, which is kept.", ""),
    ("agreement", "Agreement", "Share of the consensus' first {n} items that a head has in its own first {n}.", "%"),
    ("loss", "Loss", "Each head's own loss beside its first epoch's, for their units differ.", "/"),
    (
        "consensus_loss",
        "Consensus loss",
        "What the heads lose against the consensus, beside the first epoch with consensus loss's.",
        "/",
    ),
    ("weight", "Balancing weights", "λ of each head's loss at the end of the epoch.", ""),
    ("gradient", "Gradient scales", "Norm of each head's weighted gradient on the shared embeddings.", ""),
)


def _course(found: Mapping[str, Any]) -> Safe:
    several = len(found["run"]["heads"]) > 1
    charts = [
        _curve_chart(found, *each) for each in COURSE
        if found["curves"][each[0]] and (several or each[0] not in ("agreement", "weight", "gradient"))
    ]  # fmt: skip
    names = [each["name"] for each in found["recommenders"]]
    return joined(_legend(found, names), tag("div", *charts, class_="charts"))


def _curve_chart(found: Mapping[str, Any], kind: str, title: str, words: str, unit: str) -> Safe:
    curves, look = found["curves"][kind], _looks(found)
    shown = {name: _related(points) if unit == "/" else points for name, points in curves.items()}
    best = {each["name"]: each["epoch"] for each in found["recommenders"]} if kind == "validation" else {}
    drawn = [
        Line(name, look[name], points, next((point for point in points if point[0] == best.get(name)), None))
        for name, points in shown.items()
    ]
    metric = found["run"]["metric"]
    said = words.format(metric=metric_name(metric), n=metric.partition("@")[2])
    first = found["run"]["first_consensus_epoch"]
    since = (
        (float(first), "first epoch with consensus loss") if first is not None and kind != "consensus_loss" else None
    )
    about, up = f"{said} {_in_words(shown)}", _percent if unit == "%" else plain
    chart = lines(f"curve-{kind}", title, about, drawn, across="epoch", since=since, up=up)
    caption = tag("figcaption", tag("h3", title), tag("p", said))
    return tag("figure", caption, chart, _behind(curves, " of the losses themselves" if unit == "/" else ""))


def _related(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Beside the first value; one of 0 is no measure, and the values stand as they are."""
    first = points[0][1] or 1.0
    return [(epoch, value / first) for epoch, value in points]


def _in_words(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """For those who do not see the lines: where each begins and ends."""
    return " ".join(f"{name}: {points[0][1]:.4g} to {points[-1][1]:.4g}." for name, points in curves.items())


def _behind(curves: Mapping[str, Sequence[tuple[int, float]]], what: str) -> Safe:
    """The table of a chart of epochs."""
    epochs = sorted({epoch for points in curves.values() for epoch, _ in points})
    step = -(-len(epochs) // TABLE_ROWS)
    values = {name: dict(points) for name, points in curves.items()}
    rows = [
        [epoch, *(_number(each[epoch]) if epoch in each else "" for each in values.values())]
        for epoch in epochs
        if epoch % step == 0 or epoch == epochs[-1]
    ]
    words = f"Table{what}" + (f", every {step} epochs" if step > 1 else "")
    return tag("details", tag("summary", words), table(["epoch", *values], rows))


def _number(value: float) -> str:
    """As many digits as help."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{value:.0%}" if abs(value * 100 - round(value * 100)) < 1e-9 else f"{value:.1%}"


def _complementarity(found: Mapping[str, Any]) -> Safe | None:
    told = found["complementarity"]
    if told is None:
        return None
    words = _words(
        f"PER (row; column): the share of the row's hits in the test part, in the first {told['n']} places, that the "
        "column does not have. Missed: the share of what any head hits that the row does not (CHR)."
    )
    names = list(told["per"])
    head = tag("tr", tag("td"), *(tag("th", name, scope="col") for name in (*names, "hits", "missed")))
    rows = [
        tag("tr", tag("th", x, scope="row"), *(_heat(told["per"][x][y], x == y) for y in names),
            tag("td", f"{told['hits'][x]:,}", class_="apart"), tag("td", f"{told['chr'][x]:.1%}", class_="apart"))
        for x in names
    ]  # fmt: skip
    shaded = tag("table", tag("caption", f"PER@{told['n']}"), tag("thead", head), tag("tbody", *rows), class_="heat")
    return joined(words, tag("div", shaded, class_="wide", tabindex=0, role="region", aria_label="PER map"))


def _heat(value: float, self: bool) -> Safe:
    if self:
        return tag("td", "–", class_="none")
    return tag("td", f"{value:.3f}", style=f"--w:{min(value, 1) * 80:.0f}%")


def _groups(found: Mapping[str, Any]) -> Safe | None:
    told = found["groups"]
    if told is None:
        return None
    words = _words("Users sorted by their training interactions and cut into groups of equal size; test figures.")
    figures = (found["figures"][1], found["figures"][3])
    charts = tag("div", *(_group_chart(found, figure) for figure in figures), class_="charts")
    return joined(words, _legend(found, list(told["means"])), charts)


def _group_chart(found: Mapping[str, Any], figure: str) -> Safe:
    told, look, name = found["groups"], _looks(found), metric_name(figure)
    values = {who: [(place, each[figure]) for place, each in enumerate(means)] for who, means in told["means"].items()}
    labels = [f"G-{place + 1}" for place in range(len(told["groups"]))]
    drawn = [Line(who, look[who], points) for who, points in values.items()]
    about = f"Test {name} of users by activity, the most active first. {_in_words(values)}"
    chart = lines(f"group-{figure.replace('@', '-')}", f"Test {name} by activity", about, drawn,
                  across="most active … least active", groups=labels)  # fmt: skip
    rows = [
        [label, f"{group['users']:,}", f"{group['activity']:.1f}",
         *(f"{points[place][1]:.4f}" for points in values.values())]
        for place, (label, group) in enumerate(zip(labels, told["groups"], strict=True))
    ]  # fmt: skip
    behind = tag("details", tag("summary", "Table"), table(["group", "users", "interactions", *values], rows))
    return tag("figure", tag("figcaption", tag("h3", f"Test {name}")), chart, behind)


def _about(found: Mapping[str, Any]) -> Safe:
    data, run, settings, made = (found[part] for part in ("data", "run", "settings", "provenance"))
    machine = made.get("machine", {})
    versions = ", ".join(f"{name} {version}" for name, version in made.get("versions", {}).items())
    of_data = {
        "source": data["source"], "protocol": f"{data['protocol']}, seed {data['split_seed']}",
        "filters": "; ".join(data["filters"]) or "none",
        "density": f"{data['density']:.3%}", "events, filtered": f"{data['events']:,}",
        "train / validation / test": f"{data['train']:,} / {data['valid']:,} / {data['test']:,}",
        "dropped by the split": f"{data['dropped']:,}", "evaluated users": f"{data['evaluated_users']:,}",
        "split hash": tag("code", data["split_hash"][:16]), "notes": "; ".join(data["notes"]) or "none",
    }  # fmt: skip
    of_run = {
        "seed": run["seed"], "device": run["device"], "heads": ", ".join(run["heads"]),
        "do not vote": ", ".join(run["non_voting"]) or "none",
        "preset": settings["preset"] + (", changed" if settings["changes"] else ""),
        "concf": f"{made.get('concf', '?')}, commit {made.get('commit') or 'unknown'}",
        "versions": versions or "unknown",
        "machine": ", ".join(str(machine[name]) for name in ("processor", "system") if machine.get(name)) or "unknown",
        "cores": machine.get("cores", "unknown"),
    }  # fmt: skip
    return joined(tag("div", facts("Data", of_data), facts("Run", of_run), class_="facts"), _changes(settings))


def _changes(settings: Mapping[str, Any]) -> Safe:
    """What differs from the nearest preset, and behind it every setting."""
    rows = [[each["name"], text(_value(each["value"])), text(_value(each["preset"]))] for each in settings["changes"]]
    caption = f"Settings that differ from the preset {settings['preset']}"
    differing = (
        table(["setting", "this run", settings["preset"]], rows, caption=caption, kind="words") if rows else None
    )
    everything = table(
        ["setting", "value"], [[name, _value(value)] for name, value in settings["all"].items()], kind="words"
    )
    return joined(differing, tag("details", tag("summary", "Every setting"), everything))


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "none"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)

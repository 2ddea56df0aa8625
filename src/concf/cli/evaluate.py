"""`concf evaluate` and `concf compare`."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from concf.cli.output import Engine, Json, check_workers, names, print_heads, print_table, print_windows, title_of
from concf.cli.reading import OPTIONS, SPLITTING, reads_a_log, refuse_options, weighting
from concf.errors import ConfigError, note
from concf.runtime import text_tables

DEFAULT_MODELS = "popularity,itemknn,ease,rp3beta"
ROLLING = [name for name in OPTIONS if name not in SPLITTING or name == "test"]


@reads_a_log(ROLLING)
def evaluate(
    log: dict[str, Any],
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`); with --cuts, a log.")],
    *,
    data: Annotated[Path | None, typer.Option(help="The data set that it was trained on, if it has moved.")] = None,
    on: Annotated[Literal["test", "valid"], typer.Option(help="The part that is held out.")] = "test",
    at: Annotated[str | None, typer.Option(help="Lengths of the lists.", show_default="20,50")] = None,
    metrics: Annotated[str | None, typer.Option(help="recall, ndcg, precision, map, mrr, hit, coverage, gini, novelty, popularity; with --cuts such as recall@50, the first to choose settings by.", show_default="recall,ndcg; with --cuts, ndcg@10,hit@10,recall@50")] = None,
    catalogue: Annotated[Path | None, typer.Option(help="A .csv, .tsv, .parquet or .jsonl file of items and their attributes, by which new and rare items are ranked.")] = None,
    catalogue_item: Annotated[str | None, typer.Option(help="The catalogue's column of item ids.", show_default="item, item_id or id")] = None,
    cuts: Annotated[int | None, typer.Option(min=1, help="Number of cuts of LOG: train models on the part before each, and test them on the window of --test (28d, or a share) after it.", show_default=False)] = None,
    models: Annotated[str | None, typer.Option(help="With --cuts: as for `concf compare`.", show_default="concf:strong")] = None,
    update: Annotated[bool, typer.Option("--update", help="With --cuts: train concf:strong also once, and then update it.")] = False,
    plot: Annotated[Path | None, typer.Option(help="With --cuts: draw the first metric over time into this .svg, .png or .pdf file.")] = None,
    results: Annotated[Path | None, typer.Option(help="With --cuts: JSON lines of the measurements; those that the file holds are not repeated.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Measure every head and consensus of a run on held-out items, ranking the whole catalogue.

    `concf evaluate runs/first --at 20,50 --metrics recall,ndcg,coverage`

    `concf evaluate runs/new --catalogue items.csv` for a data set that was split by `new-items`

    `concf evaluate log.csv --cuts 3 --test 28d` trains and tests at rolling cuts of a log
    """
    if cuts is not None:
        if at is not None or catalogue is not None or data is not None or on == "valid":
            raise ConfigError("--at, --on, --data and --catalogue are for a run. Set lengths by --metrics recall@50")
        from concf.comparison import rolling

        measured = rolling.evaluate_rolling(
            str(folder), names(models or "concf:strong"), cuts=cuts, update=update,
            metrics=names(metrics or "") or rolling.METRICS, log=results, **log,
        )  # fmt: skip
        if plot is not None:
            measured.plot(plot)
        if as_json:
            typer.echo(json.dumps(measured.as_dict()))
            return
        print_windows(measured.windows, ["from", "to"], f"{folder}: test windows")
        print_table(*measured.rows(), title="Mean ± standard deviation over the windows, of warm users and of everyone")
        return
    if models is not None or results is not None or plot is not None or update:
        raise ConfigError("--models, --results, --plot and --update are for rolling cuts. Set --cuts")
    refuse_options(log, "for a log at rolling cuts. Set --cuts, or leave it out")
    from concf.inference.ranker import Ranker, evaluate_new
    from concf.inference.titles import Catalogue
    from concf.models import load_run

    cutoffs = [int(n) if n.isdecimal() else 0 for n in names(at or "20,50")]
    if min(cutoffs, default=0) < 1:
        raise ConfigError(f"--at {at!r}: expected lengths of lists such as 20,50")
    run = load_run(folder, data)
    shown = run.settings.consensus.shown
    if run.settings.several and max(cutoffs) > shown:
        note(f"the consensus lists have {shown} items (consensus.shown); longer ones are cut there")
    everyone, settings = {}, dict[str, Any](on=on, at=cutoffs, metrics=names(metrics or "recall,ndcg"))
    if catalogue is not None:
        evaluations = evaluate_new(Ranker(run, items=Catalogue(catalogue, catalogue_item)), **settings)
    else:
        evaluations = run.evaluate(**settings)
        if run.data.recipe.protocol.time_cut == "all":
            everyone = run.evaluate(**settings, everyone=True)
    report = run.summary() | {"folder": str(folder), "on": on}
    for each in report["recommenders"]:
        each["means"] = evaluations[each["name"]].means()
        if everyone:
            each["everyone"] = everyone[each["name"]].means()
    if as_json:
        typer.echo(json.dumps(report))
        return
    unfinished = "" if run.finished else f", not finished: after {run.epoch} {run.unit}"
    title, rows = f"{title_of(run)}: {on} metrics{unfinished}", report["recommenders"]
    print_heads(report, title, metrics=list(rows[0]["means"]))
    if everyone:
        n_users = len(next(iter(everyone.values())).users)
        table = [[each["name"], *map("{:.4f}".format, each["everyone"].values())] for each in rows]
        header = ["", *map(text_tables.short, rows[0]["everyone"])]
        print_table(header, table, title=f"Everyone: {n_users:,} users, new ones and new items too")
    chosen = "with settings chosen by" if run.unit == "stages" else "each at the epoch of its best"
    users, validated = f"{len(run.data.users(on)):,} users", f"{report['validated_users']:,} users"
    typer.echo(f"Means over {users}, {chosen} validation (of {validated}). Split hash {run.data.hash[:16]}.")


def compare(
    folder: Annotated[Path, typer.Argument(help="A prepared data set (see `concf prepare`).")],
    models: Annotated[str | None, typer.Option(help="Names, separated by commas: popularity, itemknn, userknn, ease, rp3beta, puresvd, ials, als; for logs with times, recent-popularity, decayed-popularity, als-decayed, ease-decayed, slist, als-sequence; concf:strong or another preset; concf:cml or another objective, trained alone.", show_default="popularity,itemknn,ease,rp3beta; with --grid, those that it names")] = None,
    grid: Annotated[Path | None, typer.Option(help="A TOML file with the settings to search, for a baseline, a preset or an objective: `[reference]`, `\"consensus.weight\" = [0.005, 0.01]`.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of splits: the seed of the data set and the next ones.")] = 5,
    metrics: Annotated[str, typer.Option(help="Metrics and lengths of lists; by the first, on validation, settings are chosen: recall, ndcg, precision, map, mrr, hit, coverage, gini, novelty, popularity.")] = "recall@50,ndcg@50,recall@20,ndcg@20",
    weights: Annotated[Literal["none", "linear", "log"] | None, typer.Option(help="Weigh interactions by their count: none, linear, or log, ln(1 + count).", show_default="none")] = None,
    half_life: Annotated[str | None, typer.Option(help="Age at which an interaction counts half, such as 90d (s, h, d, w, y).", show_default="none")] = None,
    age: Annotated[Literal["first", "last"] | None, typer.Option(help="With --half-life: the event from which the age of a pair counts.", show_default="last")] = None,
    log: Annotated[Path | None, typer.Option(help="JSON lines of the measurements; those that the file holds are not repeated.")] = None,
    engine: Annotated[Engine | None, typer.Option(help="Several workers, with the same result: processes, or ray (a local cluster, or the one at RAY_ADDRESS).", show_default="this process")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="With --engine: how many.", show_default="one for each core")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Tune models on validation, test them on several splits, and show which are better, with significance.

    `concf compare data/citeulike --models popularity,itemknn,ease,rp3beta,als --seeds 5`

    `concf compare data/citeulike --grid grid.toml`
    """
    from concf.comparison.compare import compare as compare_models
    from concf.comparison.compare import comparison_rows
    from concf.data.split import Split
    from concf.models import choose_settings

    check_workers(engine, workers)
    result = compare_models(
        Split.load(folder).weighted(choose_settings(words=weighting(weights, half_life, age)).weights),
        names(models if models is not None else DEFAULT_MODELS if grid is None else ""), grid=grid, seeds=seeds,
        metrics=names(metrics), log=log, engine=engine, workers=workers,
    )  # fmt: skip
    table, report = comparison_rows(result), result.as_dict()
    if as_json:
        typer.echo(json.dumps(report))
        return
    print_table(*table, title=f"{result.source}, protocol {result.protocol}, {len(result.seeds)} splits")
    users = " to ".join(dict.fromkeys(f"{count(report['evaluated_users']):,}" for count in (min, max)))
    fitted = {model["model"]: model["fitted_on"] for model in report["models"]}
    refitted = "train and valid" in fitted.values()
    others = [name for name, pairs in fitted.items() if refitted and pairs == "train"]
    typer.echo(
        f"Tested as fitted on training {'and validation ' * refitted}pairs"
        f"{', on training pairs alone: ' * bool(others)}{', '.join(others)}.\n"
        f"Means over {users} users ± standard deviation over splits {report['seeds']}. Settings "
        f"chosen on {report['tuned_on']}; * marks the edge of a grid.\np: against the first, {report['test']}. "
        f"Split hashes {', '.join(split[:8] for split in report['split_hashes'])}."
    )

"""`concf evaluate` and `concf compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from concf.cli.output import Engine, Json, check_workers, lengths, names, print_heads, print_table, title_of
from concf.cli.reading import weighting
from concf.errors import ConfigError

DEFAULT_MODELS = "popularity,itemknn,ease,rp3beta"


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`).")],
    data: Annotated[Path | None, typer.Option(help="The data set that it was trained on, if it has moved.")] = None,
    on: Annotated[Literal["test", "valid"], typer.Option(help="The part that is held out.")] = "test",
    at: Annotated[str, typer.Option(help="Lengths of the lists.")] = "20,50",
    metrics: Annotated[str, typer.Option(help="recall, ndcg, precision, map, mrr, hit, coverage, gini, novelty, popularity.")] = "recall,ndcg",
    catalogue: Annotated[Path | None, typer.Option(help="A .csv, .tsv, .parquet or .jsonl file of items and their attributes, by which new and rare items are ranked.")] = None,
    catalogue_item: Annotated[str | None, typer.Option(help="Its column of the item.", show_default="item, item_id or id")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Rank the whole catalogue by every head and consensus of a run, each at the epoch of its best validation.

    `concf evaluate runs/first --at 20,50 --metrics recall,ndcg,coverage`

    `concf evaluate runs/new --catalogue items.csv` for a data set that was split by `new-items`
    """
    from concf.inference.ranker import Ranker, evaluate_new
    from concf.inference.titles import Catalogue
    from concf.models import load_run

    cuts, wanted = lengths(at), names(metrics)
    run = load_run(folder, data)
    shown = run.settings.consensus.shown
    if run.settings.several and max(cuts) > shown:
        typer.echo(
            f"note: the consensus lists have {shown} items (consensus.shown); longer ones are cut there", err=True
        )
    evaluations = (
        run.evaluate(on=on, at=cuts, metrics=wanted)
        if catalogue is None
        else evaluate_new(Ranker(run, items=Catalogue(catalogue, catalogue_item)), on=on, at=cuts, metrics=wanted)
    )
    report = run.summary() | {"folder": str(folder), "on": on}
    report["recommenders"] = [each | {"means": evaluations[each["name"]].means()} for each in report["recommenders"]]
    if as_json:
        typer.echo(json.dumps(report))
        return
    unfinished = "" if run.finished else f", not finished: after {run.epoch} epochs"
    title = f"{title_of(run)}: {on} metrics{unfinished}"
    print_heads(report, title, metrics=list(report["recommenders"][0]["means"]))
    chosen = "with settings chosen by" if run.unit == "stages" else "each at the epoch of its best"
    typer.echo(
        f"Means over {len(run.data.users(on)):,} users, {chosen} validation (of {report['validated_users']:,} users). "
        f"Split hash {run.data.hash[:16]}."
    )


def compare(
    folder: Annotated[Path, typer.Argument(help="A prepared data set (see `concf prepare`).")],
    models: Annotated[str | None, typer.Option(help="Names, separated by commas: popularity, itemknn, userknn, ease, rp3beta, puresvd, ials, als, bpr; concf:strong or another preset; concf:cml or another objective, trained alone.", show_default="popularity,itemknn,ease,rp3beta; with --grid, those that it names")] = None,
    grid: Annotated[Path | None, typer.Option(help="A TOML file with the settings to search, for a baseline, a preset or an objective: `[reference]`, `\"consensus.weight\" = [0.005, 0.01]`.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of splits: the seed of the data set and the next ones.")] = 5,
    at: Annotated[str, typer.Option(help="Lengths of the lists.")] = "20,50",
    metrics: Annotated[str, typer.Option(help="recall, ndcg, precision, map, mrr, hit, coverage, gini, novelty, popularity.")] = "recall,ndcg",
    tune_on: Annotated[str | None, typer.Option(help="Validation metric that chooses the settings.", show_default="the first metric at the greatest length")] = None,
    refit: Annotated[bool, typer.Option(help="Before the test, fit baselines with the chosen settings on training and validation pairs.")] = True,
    weights: Annotated[Literal["none", "linear", "log"] | None, typer.Option(help="Weigh interactions by their count: none, linear, or log, ln(1 + count).", show_default="none")] = None,
    half_life: Annotated[str | None, typer.Option(help="Age at which an interaction counts half, such as 90d (s, h, d, w, y).", show_default="none")] = None,
    log: Annotated[Path | None, typer.Option(help="JSON lines of every measurement; a comparison that was killed continues from there.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the table as Markdown, to a .md file.")] = None,
    engine: Annotated[Engine | None, typer.Option(help="Several workers, with the same result: processes, or ray (a local cluster, or the one at RAY_ADDRESS).", show_default="this process")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="With --engine: how many.", show_default="one for each core")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Tune models on validation, test them on several splits, and show which are better, with significance.

    `concf compare data/citeulike --models popularity,itemknn,ease,rp3beta,ials --seeds 5`

    `concf compare data/citeulike --grid grid.toml`
    """
    from concf.comparison.compare import compare as compare_models
    from concf.comparison.compare import comparison_rows
    from concf.data.split import Split
    from concf.models import choose_settings
    from concf.runtime.files import new_file
    from concf.runtime.text_tables import markdown as markdown_table

    if markdown is not None and markdown.suffix != ".md":
        raise ConfigError(f"--markdown {markdown}: choose a name that ends in .md")
    check_workers(engine, workers)
    result = compare_models(
        Split.load(folder).weighted(choose_settings(words=weighting(weights, half_life)).weights),
        names(models if models is not None else DEFAULT_MODELS if grid is None else ""), grid=grid, seeds=seeds,
        at=lengths(at), metrics=names(metrics), tune_on=tune_on, refit=refit,
        log=log, engine=engine, workers=workers,
    )  # fmt: skip
    table = comparison_rows(result)
    if markdown is not None:
        with new_file(markdown) as fresh:
            fresh.write_text(markdown_table(*table), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
        return
    print_table(*table, title=f"{result.source}, protocol {result.protocol}, {len(result.seeds)} splits")
    _print_footnote(result.as_dict())


def _print_footnote(report: dict[str, Any]) -> None:
    few, many = min(report["evaluated_users"]), max(report["evaluated_users"])
    users = f"{few:,}" if few == many else f"{few:,} to {many:,}"
    fitted = {model["model"]: model["fitted_on"] for model in report["models"]}
    refitted = "train and valid" in fitted.values()
    others = [name for name, pairs in fitted.items() if refitted and pairs == "train"]
    typer.echo(
        f"Tested as fitted on training {'and validation ' * refitted}pairs"
        f"{', on training pairs alone: ' * bool(others)}{', '.join(others)}.\n"
        f"Means over {users} users ± standard deviation over splits {report['seeds']}. Settings chosen on {report['tuned_on']}; "
        f"* marks the edge of a grid.\np: against the first, {report['test']}. "
        f"Split hashes {', '.join(split[:8] for split in report['split_hashes'])}."
    )

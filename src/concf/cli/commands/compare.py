"""`concf compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from concf.cli.output import Engine, Json, check_workers, lengths, names, print_table
from concf.cli.reading import weighting
from concf.errors import ConfigError

DEFAULT_MODELS = "popularity,itemknn,ease,rp3beta"


def compare(
    folder: Annotated[Path, typer.Argument(help="A prepared data set (see `concf prepare`).")],
    models: Annotated[str | None, typer.Option(help="Names, separated by commas: popularity, itemknn, userknn, ease, rp3beta, puresvd, ials, als, bpr; concf:strong or another preset; concf:cml or another objective, trained alone.", show_default="popularity,itemknn,ease,rp3beta; with --grid, those that it names")] = None,
    grid: Annotated[Path | None, typer.Option(help="A TOML or JSON file with the settings to search, for a baseline, a preset or an objective: `[reference]`, `\"consensus.weight\" = [0.005, 0.01]`.")] = None,
    most_points: Annotated[int, typer.Option(min=1, help="With --grid: refuse one of more points.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Number of splits: the seed of the data set and the next ones.")] = 5,
    at: Annotated[str, typer.Option(help="Lengths of the lists.")] = "20,50",
    metrics: Annotated[str, typer.Option(help="recall, ndcg, precision, map, mrr, hit, coverage, gini, novelty, popularity.")] = "recall,ndcg",
    tune_on: Annotated[str | None, typer.Option(help="Validation figure that chooses the settings.", show_default="the first metric at the greatest length")] = None,
    refit: Annotated[bool, typer.Option(help="Before the test, fit baselines with the chosen settings on training and validation pairs.")] = True,
    fusions: Annotated[bool, typer.Option("--fusions", help="The baselines take part by their plain fusions too: reciprocal ranks, Borda, CombSUM, CombMNZ, weighted, greedy.")] = False,
    weights: Annotated[Literal["none", "linear", "log"] | None, typer.Option(help="Weigh interactions by their count: none, linear, or log, ln(1 + count).", show_default="none")] = None,
    half_life: Annotated[str | None, typer.Option(help="Age at which an interaction counts half, such as 90d (s, h, d, w, y).", show_default="none")] = None,
    test: Annotated[Literal["t", "wilcoxon"], typer.Option(help="Paired test of significance, Holm-corrected.")] = "t",
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
        names(models if models is not None else DEFAULT_MODELS if grid is None else ""),
        grid=grid,
        most_points=most_points,
        seeds=seeds,
        at=lengths(at),
        metrics=names(metrics),
        tune_on=tune_on,
        refit=refit,
        fusions=fusions,
        log=log,
        engine=engine,
        workers=workers,
    )
    table = comparison_rows(result, test)
    if markdown is not None:
        with new_file(markdown) as fresh:
            fresh.write_text(markdown_table(*table), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(result.as_dict(test)))
        return
    print_table(*table, title=f"{result.source}, protocol {result.protocol}, {len(result.seeds)} splits")
    _print_footnote(result.as_dict(test))


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

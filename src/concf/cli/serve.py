"""`concf serve`."""

import os
import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from concf.errors import ConfigError, MissingExtraError

CATALOGUE, RELOADING = "Titles and attributes of items", "Reloading over HTTP"
LIMITS, CONNECTIONS = "Limits of a request", "Connections"
TOKEN = "CONCF_TOKEN"
LIBRARIES = ("starlette", "uvicorn", "httptools", "prometheus_client")  # of the extra `serve`


def serve(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`).")],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0: any free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes that compute short requests; half as many, at least one, compute long ones, and one is a spare. Each holds the run in memory.")] = 1,
    token_file: Annotated[Path | None, typer.Option(help=f"A file with the token that callers must send; it may also be in the variable {TOKEN}.")] = None,
    compare: Annotated[Path | None, typer.Option(help="The folder of another run, which the explorer shows beside this one.")] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help="A name by which callers may address the service, besides those of the loopback and --host; *.example.com: any below; *: any at all.")] = None,
    access_log: Annotated[str | None, typer.Option(help="A file for a line of JSON about each request; -: standard error.")] = None,
    data: Annotated[Path | None, typer.Option(help="The data set that the run was trained on, if it has moved.")] = None,
    catalogue: Annotated[Path | None, typer.Option(help="A .csv, .tsv, .parquet or .jsonl file of items, titles and attributes.", rich_help_panel=CATALOGUE)] = None,
    catalogue_item: Annotated[str | None, typer.Option(help="The column of item ids.", rich_help_panel=CATALOGUE)] = None,
    catalogue_title: Annotated[str | None, typer.Option(help="The column of titles.", rich_help_panel=CATALOGUE)] = None,
    catalogue_image: Annotated[str | None, typer.Option(help="The column of addresses of pictures, which the explorer shows.", rich_help_panel=CATALOGUE)] = None,
    image_source: Annotated[list[str] | None, typer.Option(metavar="ORIGIN", help="Where pictures may come from, as https://images.example.com; without it only from this site. May be repeated.", rich_help_panel=CATALOGUE)] = None,
    rules: Annotated[Path | None, typer.Option(help="A TOML file with items that are never shown (exclude = [...]) and a condition that all fulfil (where = '...'); it is read again when it changes.", rich_help_panel=CATALOGUE)] = None,
    new_items: Annotated[bool, typer.Option("--new-items", help="Also recommend items of the catalogue that the log does not have, by their attributes.", rich_help_panel=CATALOGUE)] = False,
    admin_token_file: Annotated[Path | None, typer.Option(help="A file with the token of POST /reload, which is off without one.", rich_help_panel=RELOADING)] = None,
    run_root: Annotated[Path | None, typer.Option(help="The folder below which POST /reload may name runs; without it the same run is loaded again.", rich_help_panel=RELOADING)] = None,
    max_k: Annotated[int, typer.Option(min=1, help="Items of a list.", rich_help_panel=LIMITS)] = 200,
    max_users: Annotated[int, typer.Option(min=1, help="Users of a batch.", rich_help_panel=LIMITS)] = 1000,
    max_listed: Annotated[int, typer.Option(min=1, help="Users of a batch x items of a list.", rich_help_panel=LIMITS)] = 50_000,
    max_history: Annotated[int, typer.Option(min=1, help="Items of a history.", rich_help_panel=LIMITS)] = 10_000,
    max_histories: Annotated[int, typer.Option(min=1, help="Items of all histories of a batch.", rich_help_panel=LIMITS)] = 20_000,
    max_cost: Annotated[int, typer.Option(min=1, help="Scores (users x items) that a request may compute, as estimated.", rich_help_panel=LIMITS)] = 100_000_000,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a body.", rich_help_panel=LIMITS)] = 1 << 20,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds until an answer is computed.", rich_help_panel=LIMITS)] = 30.0,
    max_requests: Annotated[int, typer.Option(min=1, help="Short requests that wait at a time.", rich_help_panel=LIMITS)] = 512,
    max_batches: Annotated[int, typer.Option(min=1, help="Long requests that wait at a time.", rich_help_panel=LIMITS)] = 16,
    max_connections: Annotated[int, typer.Option(min=1, help="Connections open at a time.", rich_help_panel=CONNECTIONS)] = 800,
    head_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds for the first line and the headers to arrive.", rich_help_panel=CONNECTIONS)] = 10.0,
    body_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds for the body to arrive.", rich_help_panel=CONNECTIONS)] = 10.0,
    send_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds for the caller to read what was sent.", rich_help_panel=CONNECTIONS)] = 10.0,
    idle_seconds: Annotated[int, typer.Option(min=1, help="Seconds that an idle connection stays open.", rich_help_panel=CONNECTIONS)] = 30,
    drain: Annotated[float, typer.Option(min=0, help="Seconds after SIGTERM in which requests are still answered while /ready says 503.", rich_help_panel=CONNECTIONS)] = 5.0,
    closing_seconds: Annotated[int, typer.Option(min=1, help="Seconds for requests in progress when the service ends.", rich_help_panel=CONNECTIONS)] = 30,
) -> None:  # fmt: skip
    """Serve a run over HTTP: lists, explanations, similar items, and a page to explore the run.

    `concf serve runs/first`, then open http://127.0.0.1:8000

    `concf serve runs/first --host 0.0.0.0 --token-file token.txt --catalogue items.csv`

    SIGHUP or `POST /reload` loads the run again, and SIGTERM ends the service; neither loses a request.
    """
    for library in LIBRARIES:
        if find_spec(library) is None:
            raise MissingExtraError(library, "serve", "concf serve")
    from concf.inference.titles import Catalogue
    from concf.runs.checkpoint import RunFolder
    from concf.service.connections import Connections
    from concf.service.front import Access
    from concf.service.limits import Limits
    from concf.service.loading import Loader
    from concf.service.server import serve as serve_run
    from concf.service.service import Service

    if catalogue is None and (catalogue_item or catalogue_title or catalogue_image or new_items):
        raise ConfigError("--catalogue-item, -title, -image and --new-items are of a file; give --catalogue too")
    for source in (sources := tuple(image_source or ())):
        if not re.fullmatch(r"https://[\w.-]+(:[0-9]+)?", source, re.ASCII):
            raise ConfigError(f"--image-source {source}: expected an origin, such as https://images.example.com")
    if run_root is not None and admin_token_file is None:
        raise ConfigError("--run-root is for POST /reload, which is off; give --admin-token-file too")
    for each in (folder, *([compare] if compare else ())):
        RunFolder(each).description()  # refuses a folder that is not a run
    columns: dict[str, Any] = {"image": catalogue_image, "image_sources": sources}
    titles = None if catalogue is None else Catalogue(catalogue, catalogue_item, catalogue_title, **columns)
    limits = Limits(
        max_k, max_users, max_listed, max_history, max_histories, max_body, max_cost, max_requests, max_batches,
        body_seconds, seconds,
    )  # fmt: skip
    for name in allow_host or ():
        if not re.fullmatch(r"\*|(\*\.)?[\w.-]+|[\da-fA-F:.]+", name):
            raise ConfigError(f"--allow-host {name}: expected a name without port, such as recs.example.com, or *")
    token, admin = (  # not on the command line, which others can see
        _token(file.read_text(encoding="utf-8", errors="replace") if file else otherwise, file or TOKEN)
        for file, otherwise in ((token_file, os.environ.get(TOKEN)), (admin_token_file, None))
    )
    access = Access(token, admin, (host.lower(), *(name.lower() for name in allow_host or ())), sources)
    serve_run(
        partial(Service, Loader(data, titles, new_items, compare, rules=rules), folder, limits, run_root, workers), host, port,
        access, Connections(max_connections, head_seconds, send_seconds), access_log, idle_seconds, drain,
        closing_seconds,
    )  # fmt: skip


def _token(text: str | None, where: object) -> str | None:
    token = None if text is None else text.strip()
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(f"{where}: expected a token: one word of ASCII letters, digits and signs")
    return token

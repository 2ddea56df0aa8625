"""`concf serve`."""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from concf.errors import ConfigError, MissingExtraError

CATALOGUE, LIMITS = "Titles and attributes of items", "Limits"
TOKEN = "CONCF_TOKEN"
LIBRARIES = ("starlette", "uvicorn", "httptools", "prometheus_client")  # of the extra `serve`


def serve(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`).")],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0: any free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes that compute short requests; half as many, at least one, compute long ones, and one is a spare. Each holds the run in memory.")] = 1,
    token_file: Annotated[Path | None, typer.Option(help=f"A file with the token that callers must send; it may also be in the variable {TOKEN}.")] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help="A name by which callers may address the service, besides those of the loopback and --host; *.example.com: any below; *: any at all.")] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log each request as a line of JSON on standard error.")] = False,
    data: Annotated[Path | None, typer.Option(help="The data set that the run was trained on, if it has moved.")] = None,
    catalogue: Annotated[Path | None, typer.Option(help="A .csv, .tsv, .parquet or .jsonl file of items, titles and attributes.", rich_help_panel=CATALOGUE)] = None,
    catalogue_item: Annotated[str | None, typer.Option(help="The catalogue's column of item ids.", rich_help_panel=CATALOGUE)] = None,
    catalogue_title: Annotated[str | None, typer.Option(help="The catalogue's column of titles.", rich_help_panel=CATALOGUE)] = None,
    rules: Annotated[Path | None, typer.Option(help="A TOML file with items that are never shown (exclude = [...]) and a condition that all fulfil (where = '...'); it is read again when it changes.", rich_help_panel=CATALOGUE)] = None,
    new_items: Annotated[bool, typer.Option("--new-items", help="Also recommend items of the catalogue that the log does not have, by their attributes.", rich_help_panel=CATALOGUE)] = False,
    max_cost: Annotated[int, typer.Option(min=1, help="Scores (users x items) that a request may compute, as estimated.", rich_help_panel=LIMITS)] = 100_000_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="Most seconds to compute an answer.", rich_help_panel=LIMITS)] = 30.0,
    max_connections: Annotated[int, typer.Option(min=1, help="Most connections open at a time.", rich_help_panel=LIMITS)] = 800,
    idle_seconds: Annotated[int, typer.Option(min=1, help="Seconds that a connection stays open while nothing happens on it.", rich_help_panel=LIMITS)] = 30,
    drain: Annotated[float, typer.Option(min=0, help="Seconds after SIGTERM in which requests are still answered while /ready says 503.", rich_help_panel=LIMITS)] = 5.0,
) -> None:  # fmt: skip
    """Serve a run over HTTP: lists, explanations, similar items, and a page to explore the run.

    `concf serve runs/first`, then open http://127.0.0.1:8000

    `concf serve runs/first --host 0.0.0.0 --token-file token.txt --catalogue items.csv`

    SIGHUP loads the run again, and SIGTERM ends the service; neither loses a request.
    """
    for library in LIBRARIES:
        if find_spec(library) is None:
            raise MissingExtraError(library, "serve", "concf serve")
    from concf.service import server
    from concf.service.front import Access
    from concf.service.loading import Loader
    from concf.service.pool import Limits, Service

    if catalogue is None and (catalogue_item or catalogue_title or new_items):
        raise ConfigError("--catalogue-item, --catalogue-title and --new-items need a file. Set --catalogue too")
    for name in allow_host or ():
        if not re.fullmatch(r"\*|(\*\.)?[\w.-]+|[\da-fA-F:.]+", name):
            raise ConfigError(f"--allow-host {name}: expected a name without port, such as recs.example.com, or *")
    token = os.environ.get(TOKEN)  # not on the command line, which others can see
    if token_file is not None:
        token = token_file.read_text(encoding="utf-8", errors="replace")
    if token is not None and not ((token := token.strip()) and token.isascii() and token.isprintable()):
        raise ConfigError(f"{token_file or TOKEN}: expected a token: one word of ASCII letters, digits and signs")
    loader = Loader(
        data=data, catalogue=catalogue, item=catalogue_item, title=catalogue_title, new_items=new_items, rules=rules
    )
    access = Access(token, tuple(name.lower() for name in (host, *(allow_host or ()))))
    service = Service(loader, folder, Limits(max_cost, seconds), workers)
    server.serve(service, host, port, access, access_log, max_connections, idle_seconds, drain)

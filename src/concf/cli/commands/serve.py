"""`concf serve`."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from concf.errors import ConfigError, MissingExtraError

CATALOGUE, LIMITS, CONNECTIONS = "Titles of items", "Limits of a request", "Connections"
TOKEN = "CONCF_TOKEN"
LIBRARIES = ("fastapi", "uvicorn", "httptools", "prometheus_client")  # of the extra `serve`


def serve(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`).")],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0: any free one.")] = 8000,
    token_file: Annotated[Path | None, typer.Option(help=f"A file with the token that callers must send; it may also be in the variable {TOKEN}.")] = None,
    compare: Annotated[Path | None, typer.Option(help="The folder of another run, which the explorer shows beside this one.")] = None,
    data: Annotated[Path | None, typer.Option(help="The data set that the run was trained on, if it has moved.")] = None,
    catalogue: Annotated[Path | None, typer.Option(help="A .csv, .tsv, .parquet or .jsonl file of items and titles.", rich_help_panel=CATALOGUE)] = None,
    catalogue_item: Annotated[str | None, typer.Option(help="The column of item ids.", rich_help_panel=CATALOGUE)] = None,
    catalogue_title: Annotated[str | None, typer.Option(help="The column of titles.", rich_help_panel=CATALOGUE)] = None,
    max_k: Annotated[int, typer.Option(min=1, help="Items of a list.", rich_help_panel=LIMITS)] = 200,
    max_users: Annotated[int, typer.Option(min=1, help="Users of a batch.", rich_help_panel=LIMITS)] = 1000,
    max_history: Annotated[int, typer.Option(min=1, help="Items of a history.", rich_help_panel=LIMITS)] = 10_000,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a body.", rich_help_panel=LIMITS)] = 1 << 20,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests being answered at a time.", rich_help_panel=CONNECTIONS)] = 512,
    max_connections: Annotated[int, typer.Option(min=1, help="Connections open at a time.", rich_help_panel=CONNECTIONS)] = 800,
    head_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds for the first line and the headers to arrive.", rich_help_panel=CONNECTIONS)] = 10.0,
    body_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds for the body to arrive.", rich_help_panel=CONNECTIONS)] = 10.0,
    idle_seconds: Annotated[int, typer.Option(min=1, help="Seconds that an idle connection stays open.", rich_help_panel=CONNECTIONS)] = 30,
    closing_seconds: Annotated[int, typer.Option(min=1, help="Seconds for requests in progress when the service ends.", rich_help_panel=CONNECTIONS)] = 30,
) -> None:  # fmt: skip
    """Serve a run over HTTP: lists, explanations, similar items, and a page to explore the run.

    `concf serve runs/first`, then open http://127.0.0.1:8000

    `concf serve runs/first --host 0.0.0.0 --token-file token.txt --catalogue items.csv`

    SIGHUP or `POST /reload` loads the run again without losing a request; SIGTERM finishes the requests in progress and ends.
    """
    for library in LIBRARIES:
        if find_spec(library) is None:
            raise MissingExtraError(library, "serve", "concf serve")
    from concf.inference.titles import Catalogue
    from concf.service.limits import Limits
    from concf.service.loading import Loader, Service
    from concf.service.server import serve as serve_run
    from concf.training.checkpoint import RunFolder

    if catalogue is None and (catalogue_item or catalogue_title):
        raise ConfigError("--catalogue-item and --catalogue-title name columns of a file; give --catalogue too")
    titles = None if catalogue is None else Catalogue(catalogue, catalogue_item, catalogue_title)
    limits = Limits(max_k, max_users, max_history, max_body, max_requests, body_seconds)
    service = Service(Loader(data, titles), folder, limits)
    if compare is not None:
        RunFolder(compare).description()  # refuses what is no run
        service.compared = compare
    serve_run(
        service, host, port, token=_token(token_file), connections=max_connections,
        head_seconds=head_seconds, idle_seconds=idle_seconds, closing_seconds=closing_seconds,
    )  # fmt: skip


def _token(file: Path | None) -> str | None:
    """The token in the file or the environment; not on the command line, which others can see."""
    text = os.environ.get(TOKEN) if file is None else file.read_text(encoding="utf-8", errors="replace")
    if text is None:
        return None
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{file or TOKEN}: expected a token: one word of ASCII letters, digits and signs")
    return token

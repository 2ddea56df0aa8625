"""Who may ask: hosts, origins, the admin's token; reloads that are merged; request ids, the access log, traces."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from skipping import posix
from small_service import ADMIN, Client, loaded, problem, run_folder

from concf.service.app import create_app
from concf.service.http.guards import Access
from concf.service.loading import Loader, Served, Service

pytestmark = pytest.mark.usefixtures("on_one_thread")
BODY = {"users": [1]}


@pytest.fixture(scope="module")
def service() -> Service:
    return loaded(run_folder())


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with Client(service, hosts=("recs.example.com", "*.inside")) as client:
        yield client


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil",
                                  "", "10.0.0.1", "localhost@evil", "inside", "[::2]", "a b"])  # fmt: skip
def test_a_name_that_is_not_the_services_own_is_refused(client: Client, host: str) -> None:
    for path in ("/", "/health", "/run", "/recommend/1", "/nothing", "/explorer/explorer.js", "/metrics"):
        assert problem(client.get(path, headers={"host": host})) == (400, "bad_host")
    assert problem(client.post("/recommend", BODY, headers={"host": host})) == (400, "bad_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]", "[::1]:8000",
                                  "recs.example.com", "a.inside"])  # fmt: skip
def test_its_own_names_are_answered(client: Client, host: str) -> None:
    assert client.get("/recommend/1", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost"}, 200),
        ({"origin": "https://localhost"}, 200),  # a proxy may speak TLS
        ({"origin": "https://recs.example.com"}, 200),
        ({"origin": "http://localhost", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "http://127.0.0.1"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[bad"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://localhost", "sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_what_a_foreign_page_sends_is_refused(client: Client, headers: dict[str, str], status: int) -> None:
    for path, body in (("/recommend", BODY), ("/explore", {"history": [1]})):
        answer = client.post(path, body, headers=headers)
        assert answer.status_code == status
        if status == 403:
            assert problem(answer) == (403, "foreign_origin")
    assert client.get("/recommend/1", headers=headers).status_code == 200  # which the page cannot read
    reload = client.post("/reload", {}, headers=headers | {"authorization": f"Bearer {ADMIN}"})
    assert reload.status_code == status


def test_without_an_admin_token_there_is_no_reload(service: Service) -> None:
    version = service.version
    for access in (Access(), Access(token="s3cret")):
        app = create_app(service, access)

        async def ask(app: Any = app) -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                assert "/reload" not in (await http.get("/openapi.json")).json()["paths"]
                return await http.post("/reload", json={}, headers={"authorization": "Bearer s3cret"})

        assert problem(asyncio.run(ask())) == (404, "not_found")
    assert service.version == version


def test_only_the_admin_may_reload(service: Service) -> None:
    version = service.version
    with Client(service, token="s3cret") as client:
        for header in ("", "Bearer s3cret", f"Basic {ADMIN}", f"Bearer {ADMIN}x"):
            assert problem(client.post("/reload", {}, headers={"authorization": header})) == (401, "unauthorised")
        headers = {"authorization": f"Bearer {ADMIN}"}
        assert problem(client("POST", "/reload", headers=headers)) == (422, "bad_request")  # no JSON, no reload
        assert problem(client.get("/recommend/1", headers=headers)) == (401, "unauthorised")
        assert service.version == version
        assert client.reload({}).json()["version"] == version + 1


@pytest.mark.parametrize("name", ["{root}/../integers-9", "{root}/out", "/", "..", "\0", "x" * 5000, "{root}-2/run"])
@posix
def test_runs_are_named_only_below_the_root(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(run_folder())
    (root / "in").symlink_to(root / "real")
    service = Service(Loader(), run_folder(), root=root)
    service.reload()
    with Client(service) as client:
        answer = client.reload({"run": name.format(root=root)})
        assert problem(answer) == (409, "refused_run")
        assert "below" in answer.json()["detail"]
        assert "not a run" in client.reload({"run": str(root / "in")}).json()["detail"]  # it was looked for
        assert service.version == 1


def test_without_a_root_no_run_is_named() -> None:
    service = Service(Loader(), run_folder())
    service.reload()
    with Client(service) as client:
        assert "--run-root" in client.reload({"run": str(run_folder())}).json()["detail"]
        assert client.reload({}).json()["version"] == 2


class SlowLoads:
    """Loads that wait until they are let go."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.go = threading.Event()

    def __call__(self, folder: Path, version: int) -> Served:
        if version > 1:
            self.go.wait(30)
        self.folders.append(folder)
        return Loader()(folder, version)


def test_reloads_that_wait_become_one(capsys: pytest.CaptureFixture[str]) -> None:
    loads = SlowLoads()
    service = Service(loads, run_folder(), root=Path("/"))
    service.reload()

    async def many() -> list[Any]:
        tasks = [asyncio.create_task(service.reload_soon())]
        await asyncio.sleep(0.05)  # it is being loaded
        tasks += [asyncio.create_task(service.reload_soon(run_folder(seed=seed))) for seed in [0] * 499 + [1] * 15]
        await asyncio.sleep(0.05)
        loads.go.set()
        return list(await asyncio.gather(*tasks))

    first, *rest = asyncio.run(many())
    assert first["version"] == 2
    assert {each["version"] for each in rest} == {3}
    assert {each["run"] for each in rest} == {run_folder(seed=1).name}  # the folder that was named last
    assert loads.folders == [run_folder(), run_folder(), run_folder(seed=1)]
    assert capsys.readouterr().err.count("concf: serving ") == 2  # a line each


def test_who_has_left_is_not_reloaded_for() -> None:
    loads = SlowLoads()
    service = Service(loads, run_folder())
    service.reload()

    async def leave() -> None:
        first = asyncio.create_task(service.reload_soon())
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(service.reload_soon()) for _ in range(100)]
        await asyncio.sleep(0.05)
        for each in waiting:
            each.cancel()
        await asyncio.sleep(0.05)
        loads.go.set()
        await first

    asyncio.run(leave())
    assert service.version == 2


def test_a_reload_that_is_refused_is_refused_to_all_who_share_it() -> None:
    service = Service(Loader(), run_folder(), root=Path("/"))
    service.reload()

    async def many() -> list[Any]:
        asked = [service.reload_soon(Path("/nothing")) for _ in range(9)]
        return list(await asyncio.gather(*asked, return_exceptions=True))

    assert {type(each).__name__ for each in asyncio.run(many())} == {"Problem"}
    assert service.version == 1


def test_unknown_names_in_a_query_are_refused(client: Client) -> None:
    for path in ("/recommend/1?K=5", "/similar/1?by=bpr", "/run?x=", "/users?query=1", "/explore/1?heldout=1",
                 "/health?verbose", "/metrics?a=1", "/explain/1/1?k=1"):  # fmt: skip
        answer = client.get(path)
        assert problem(answer) == (422, "bad_request")
        assert answer.json()["where"].startswith("query.")


def test_head_is_get_without_a_body(client: Client) -> None:
    for path in ("/recommend/1", "/health", "/run", "/", "/docs", "/openapi.json", "/similar/1", "/metrics"):
        assert client("HEAD", path).status_code == 200
    assert client("HEAD", "/recommend/999").status_code == 404


def test_a_request_has_an_id_its_callers_or_a_new_one(client: Client) -> None:
    assert client.get("/health", headers={"x-request-id": "a1-b.c:d"}).headers["x-request-id"] == "a1-b.c:d"
    ids = [client.get("/recommend/999").headers["x-request-id"] for _ in range(3)]
    ids += [client.get("/health", headers={"x-request-id": bad}).headers["x-request-id"]
            for bad in ("a b", "x" * 65, '"', "")]  # fmt: skip
    assert len(set(ids)) == 7
    assert all(len(each) < 40 for each in ids)


def test_the_access_log_is_json_lines(service: Service) -> None:
    written, logger = StringIO(), logging.Logger("test", logging.INFO)
    logger.addHandler(logging.StreamHandler(written))
    app = create_app(service, Access(), logger)

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            await http.get('/recommend/1?k=2&by="%0a"', headers={"x-request-id": "mine"})
            await http.get("/recommend/a%0Ab")
            await http.get("/health", headers={"host": "evil.example"})

    asyncio.run(ask())
    first, second, third = map(json.loads, written.getvalue().splitlines())
    assert (first["request"], first["method"], first["path"], first["status"]) == ("mine", "GET", "/recommend/1", 404)
    assert first["route"] == second["route"] == "/recommend/{user}"
    assert second["path"] == "/recommend/a%0Ab"
    assert third["status"] == 400
    assert all(each["ms"] > 0 and each["bytes"] > 0 and each["time"].endswith("+00:00") for each in (first, second))


def test_with_opentelemetry_each_request_is_traced(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def middleware(app: Any) -> Any:
        async def traced(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["path"])
            await app(scope, receive, send)

        return traced

    library = ModuleType("starlette.middleware.opentelemetry")
    library.OpenTelemetryMiddleware = middleware  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, library.__name__, library)
    monkeypatch.setattr("concf.service.http.observing.find_spec", lambda _name: object())
    with Client(service) as client:
        client.get("/health")
    assert seen == ["/health"]

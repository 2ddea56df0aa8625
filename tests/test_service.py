"""The service over HTTP: errors in one shape, limits at their borders, who may ask, metrics, the pages."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from small_service import Client, LocalService, loaded, problem, run_folder
from starlette.routing import Router

from concf.service.app import create_app
from concf.service.front import POLICY, Access
from concf.service.loading import Loader
from concf.service.pool import Limits
from concf.service.schemas import BODY, HISTORY, LONGEST_LIST, USERS, VALUES

REFUSALS = ["400", "404", "405", "409", "413", "422"]
CONFIG = schemathesis.Config.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}})
APP = create_app(loaded(run_folder()), Access(hosts=("*",)))
JSON = {"content-type": "application/json"}
BATCH = {"users": [1]}


@pytest.fixture(scope="module")
def service() -> LocalService:
    return loaded(run_folder(), Limits(body_seconds=0.2))


@pytest.fixture(scope="module")
def client(service: LocalService) -> Iterator[Client]:
    with Client(service, hosts=("recs.example.com", "*.inside")) as client:
        yield client


def test_a_wrong_question_is_answered_in_one_shape(client: Client) -> None:
    for path in ("999", "abc", "", "1/2", "05", "%00", "%ff%fe", "9" * 5000, "٣"):
        assert problem(client.get(f"/recommend/{path}")) == (404, "unknown_user")
    for query in ("k=0", "k=x", "k=", "k=1.5", f"k={'9' * 5000}", f"k={LONGEST_LIST + 1}", "viewed=perhaps", "K=5"):
        answer = client.get(f"/recommend/1?{query}")
        assert (problem(answer), answer.json()["where"][:6]) == ((422, "bad_request"), "query.")
    for path, kind in {
        "/recommend/1?by=nobody": "unknown_head", "/similar/1?head=consensus": "unknown_head",
        "/similar/999": "unknown_item", "/explain/1?item=999": "unknown_item", "/explain/999?item=1": "unknown_user",
        "/Health": "not_found", "/health/": "not_found", "/redoc": "not_found", "/../view.py": "not_found",
        "/%2e%2e/view.py": "not_found", "/assets": "not_found",
    }.items():  # fmt: skip
        assert problem(client.get(path)) == (404, kind), path
    answer = client("DELETE", "/recommend/1")
    assert problem(answer) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert (client("HEAD", "/recommend/1").status_code, client("HEAD", "/recommend/999").status_code) == (200, 404)


MANY = {"users": [1] * USERS}


@pytest.mark.parametrize(("body", "status", "kind", "where"), [
    ("[" * 100_000, 400, "bad_request", "body"),
    ('{"users": [1], "history": [1]}', 422, "bad_request", "body"),
    ('{"users": [1, true]}', 422, "bad_request", "body.users.1"),
    ('{"users": [1], "k": "5"}', 422, "bad_request", "body.k"),
    ('{"users": ["\\ud800"], "popular": true}', 400, "bad_request", "body"),
    ('{"history": [[], []]}', 422, "bad_request", "body.history.0"),
    ('{"users": [1], "items": 5}', 422, "bad_request", "body.items"),
    ('{"users": [1], "items": {"1": [2, true]}}', 422, "bad_request", "body.items.1.1"),
    ('{"users": [1], "at": [1]}', 422, "bad_request", "body.at"),
    ('{"users": [1], "where": "a ~ \'e(.{3}){40}q\'"}', 422, "bad_request", "body.where"),
    ('{"users": [1], "where": "a rlike \'x\'"}', 422, "bad_request", "body.where"),
    (json.dumps({"users": [1], "where": " or ".join(["a = 1"] * 20)}), 422, "bad_request", "body.where"),
    (json.dumps({"users": [1]} | {str(n): 0 for n in range(40)}), 422, "bad_request", "body"),
    (json.dumps({"history": [1] * (VALUES + 2)}), 413, "too_large", "body"),
    (json.dumps({"history": [1] * (HISTORY + 1)}), 422, "bad_request", "body.history"),
    (json.dumps({"histories": {str(n): [] for n in range(USERS + 1)}}), 422, "bad_request", "body.histories"),
    (json.dumps(MANY | {"k": 200, "viewed": True}), 422, "too_costly", None),
    ('{"users": [1], "at": "yesterday"}', 409, "refused_rule", "body"),
])  # fmt: skip
def test_a_wrong_body_is_answered_in_one_shape(
    client: Client, body: str, status: int, kind: str, where: str | None
) -> None:
    answer = client("POST", "/recommend", content=body.encode(), headers=JSON)
    assert problem(answer) == (status, kind)
    assert where is None or answer.json()["where"] == where


def test_a_body_must_be_said_to_be_json_and_a_mistake_of_the_service_says_no_more(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}  # as by curl -d
    for path in ("/recommend", "/explore"):
        answer = client("POST", path, content=b'{"history": [1]}', headers=form)
        assert (problem(answer), answer.json()["where"]) == ((422, "bad_request"), "header.content-type")
    monkeypatch.setattr("concf.service.routes.answers.lists", lambda *_: 1 / 0)
    answer = client.post("/recommend", BATCH)
    assert (problem(answer), "division" in answer.text) == ((500, "internal"), False)


def test_at_the_border_of_a_limit_all_is_well(client: Client) -> None:
    assert len(client.get(f"/recommend/1?k={LONGEST_LIST}&by=bpr&viewed=true").json()["items"]) == 30
    assert len(client.post("/recommend", MANY | {"k": 5}).json()["lists"]) == USERS
    assert len(client.post("/recommend", {"history": [1, 2] * (HISTORY // 2)}).json()["lists"]) == 1
    late = client.post("/recommend", {"users": [1], "at": 2e9})  # a run without ages ignores it, and says so
    assert (late.json()["lists"], "no effect" in late.json()["note"]) == (
        client.post("/recommend", BATCH).json()["lists"], True,
    )  # fmt: skip


def test_a_large_body_is_not_read_to_its_end_nor_a_slow_one_waited_for(client: Client) -> None:
    read = 0

    async def all_of(size: int) -> AsyncIterator[bytes]:
        for begin in range(0, size, 1 << 16):
            yield b'{"users": [1]}'.ljust(size)[begin : begin + (1 << 16)]

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1 << 16
            yield b" " * (1 << 16)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    assert client("POST", "/recommend", content=all_of(BODY), headers=JSON).status_code == 200  # the last byte
    for body in (all_of(BODY + 1), endless()):
        assert problem(client("POST", "/recommend", content=body, headers=JSON)) == (413, "too_large")
    assert read < 20 << 20
    assert problem(client("POST", "/recommend", content=slow(), headers=JSON)) == (408, "too_slow")


def test_with_a_token_only_who_shows_it_is_answered(service: LocalService) -> None:
    with Client(service, token="s3cret") as client:
        for header in ("", "s3cret", "Bearer", "Bearer S3cret", "Bearer s3cre", "Basic s3cret", b"Bearer s3cret\xff"):
            for path in ("/recommend/1", "/recommend", "/similar/1", "/run", "/metrics", "/users"):
                answer = client.get(path, headers={"authorization": header})
                assert (problem(answer), answer.headers["www-authenticate"]) == ((401, "unauthorised"), "Bearer")
        for scheme in ("Bearer", "bearer"):  # its letters may be of any size (RFC 9110), the token's may not
            assert client.get("/recommend/1", headers={"authorization": f"{scheme} s3cret"}).status_code == 200
        for path in ("/health", "/ready", "/", "/docs.html", "/openapi.json", "/index.html"):
            assert client.get(path).status_code == 200
        document = client.get("/openapi.json").json()
    assert document["security"] == [{"token": []}]
    assert document["components"]["schemas"]["ListsRequest"]["properties"]["users"]["maxItems"] == USERS


def test_a_name_that_is_not_the_services_own_is_refused(client: Client) -> None:
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil", "", "10.0.0.1", "a@b", "inside", "[::2]"):
        for path in ("/", "/health", "/recommend/1", "/nothing", "/explorer.js", "/metrics"):
            assert problem(client.get(path, headers={"host": host})) == (400, "bad_host")
        assert problem(client.post("/recommend", BATCH, headers={"host": host})) == (400, "bad_host")
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]", "[::1]:8000", "recs.example.com", "a.inside"):
        assert client.get("/recommend/1", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(("headers", "status"), [
    ({}, 200),
    ({"origin": "https://localhost"}, 200),  # a proxy may speak TLS
    ({"origin": "https://recs.example.com"}, 200),
    ({"origin": "http://localhost:9999"}, 403),
    ({"origin": "http://localhost", "sec-fetch-site": "same-origin"}, 200),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://[bad"}, 403),
    ({"origin": "http://localhost", "sec-fetch-site": "cross-site"}, 403),
])  # fmt: skip
def test_what_a_foreign_page_sends_is_refused(client: Client, headers: dict[str, str], status: int) -> None:
    for path, body in (("/recommend", BATCH), ("/explore", {"history": [1]})):
        answer = client.post(path, body, headers=headers)
        assert answer.status_code == status
        assert status == 200 or problem(answer) == (403, "foreign_origin")
    assert client.get("/recommend/1", headers=headers).status_code == status


def test_a_foreign_page_may_only_link_to_the_pages(client: Client) -> None:
    for path, dest, status in (
        ("/", "document", 200), ("/docs.html", "document", 200), ("/recommend/1", "document", 403),
        ("/", "iframe", 403), ("/recommend/1", "object", 403), ("/recommend/999", "object", 403),
        ("/dom.js", "script", 403),
    ):  # fmt: skip
        answer = client.get(path, headers={"sec-fetch-site": "cross-site", "sec-fetch-dest": dest})
        assert answer.status_code == status
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert client.get("/recommend/1").headers["x-run-id"] == client.service.run_id != ""
    twice = [("host", "localhost"), ("host", "localhost")]
    assert problem(client.get("/recommend/1", headers=twice)) == (400, "bad_host")


def test_an_expensive_request_is_refused_with_the_limit() -> None:
    with Client(loaded(run_folder(), Limits(cost=1_000_000))) as client:
        assert client.post("/recommend", {"users": [1] * 100}).status_code == 200
        for costly in ({"users": [1] * 300, "diversity": 1, "k": 12}, {"histories": {str(n): [1] for n in range(300)}}):
            answer = client.post("/recommend", costly)
            assert (problem(answer), "at most 1,000,000" in answer.json()["detail"]) == ((422, "too_costly"), True)


def test_an_unknown_user_of_a_batch_is_that_users_error(client: Client) -> None:
    both = client.post("/recommend", {"users": [1, 999, 2], "k": 3}).json()
    one, stranger, two = both["lists"]
    assert (stranger["items"], "no user is called 999" in stranger["error"]) == ([], True)
    assert [one, two] == client.post("/recommend", {"users": [1, 2], "k": 3}).json()["lists"]
    assert one["error"] is None
    assert "1 of the users" in both["note"]


def test_requests_are_traced_only_if_the_environment_says_where_to(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    assert isinstance(create_app(service).app, Router)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "test")
    assert not isinstance(create_app(service).app, Router)
    with Client(service) as client:
        assert client.get("/recommend/1").status_code == 200
        assert problem(client.get("/recommend/x")) == (404, "unknown_user")
        assert problem(client.get("/recommend/1", headers={"host": "[a"})) == (400, "bad_host")


def test_an_answer_names_the_run_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    service = loaded(run_folder())
    first, usual = service.run_id, service.pool.ask

    async def slowly(job: bytes, cost: float) -> Any:
        service.folder = run_folder(seed=1)
        await service.reload()
        return await usual(job, cost)

    monkeypatch.setattr(service.pool, "ask", slowly)
    with Client(service) as client:
        one, two = (client.get("/recommend/1?by=bpr") for _ in range(2))
        assert [each.headers["x-run-id"] for each in (one, two)] == [first, service.run_id]
        assert one.json() != two.json()


def test_queries_are_short(client: Client) -> None:
    for query in (f"k={'9' * 2000}", "&".join(f"f{n}=1" for n in range(99)), f"k=1&by={'x' * 20_000}"):
        assert problem(client.get(f"/recommend/1?{query}")) == (422, "bad_request")


def test_alive_before_it_is_ready() -> None:
    service = LocalService(Loader(), run_folder())
    with Client(service) as client:
        for path in ("/ready", "/recommend/1", "/run", "/similar/1", "/users", "/explore/1"):
            assert problem(client.get(path)) == (503, "not_ready")
        assert client.get("/health").json() == {"status": "alive"}
        service.load()
        assert client.get("/ready").json() == {"status": "ready", "run": run_folder().name}
        service.closing = True
        assert problem(client.get("/ready")) == (503, "not_ready")
        assert client.get("/recommend/1").status_code == 200  # who still comes is answered


def test_metrics_count_by_route_method_and_status(service: LocalService) -> None:
    async def leaves() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def nobody_listens(_message: Any) -> None:
        pytest.fail("an answer to nobody")

    with Client(service) as client:
        for path in ("/recommend/1", "/recommend/2?k=3", "/recommend/1?viewed=true", "/recommend/999", "/similar/1"):
            client.get(path)
        for number in range(20):
            client.get(f"/nothing/{number}")
            client(f"VERB{number}", f"/recommend/{number}")
        scope = {"type": "http", "method": "POST", "path": "/recommend", "query_string": b""}
        asyncio.run(client.app(scope | {"headers": [(b"host", b"localhost")]}, leaves, nobody_listens))
        lines = [line.rpartition(" ") for line in client.get("/metrics").text.splitlines() if line[0] != "#"]
    counts, requests = {name: float(value) for name, _, value in lines}, "concf_requests_total"
    assert counts[f'{requests}{{method="GET",route="/recommend/{{user}}",status="200"}}'] == 3
    assert counts[f'{requests}{{method="GET",route="/recommend/{{user}}",status="404"}}'] == 1
    assert counts[f'{requests}{{method="GET",route="page",status="404"}}'] == 20
    assert counts[f'{requests}{{method="POST",route="/recommend",status="499"}}'] == 1  # no mistake of the service
    assert counts['concf_request_seconds_count{route="/similar/{item}"}'] in (1, 2)
    assert counts["concf_requests_in_flight"] == 1  # the question itself
    assert counts["concf_run_version"] == service.version
    assert len([name for name in counts if name.startswith(requests)]) < 10
    assert not [name for name in counts if "VERB" in name or "nothing" in name]


def test_the_pages_are_served_safely(client: Client) -> None:
    assert POLICY.startswith("default-src 'self'")
    for path, kind in (("/", "text/html"), ("/docs.html", "text/html"), ("/explorer.css", "text/css")):
        plain = client.get(path)
        assert plain.headers["content-type"].startswith(kind)
        assert (plain.headers["content-security-policy"], plain.headers["cache-control"]) == (POLICY, "no-cache")
        again = client.get(path, headers={"if-none-match": plain.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@schemathesis.openapi.from_asgi("/openapi.json", APP, config=CONFIG).parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_the_openapi_document_says(case: schemathesis.TrainingSet) -> None:
    case.call_and_validate()

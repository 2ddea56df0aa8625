"""The service's manners: errors in one shape, limits at their borders, a token, metrics, pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_service import ADMIN, SHOWN, Client, loaded, problem, run_folder, segment

from concf.errors import ConcfError
from concf.service.http.pages import POLICY
from concf.service.limits import Limits
from concf.service.loading import Loader, Service

pytestmark = pytest.mark.usefixtures("on_one_thread")
JSON = {"content-type": "application/json"}
LIMITS = Limits(k=SHOWN, users=4, history=5, body=2000, in_flight=3, body_seconds=0.2)


@pytest.fixture(scope="module")
def service() -> Service:
    return loaded(run_folder(), LIMITS)


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with Client(service) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/recommend/999", 404, "unknown_user"),
        ("/recommend/abc", 404, "unknown_user"),
        ("/recommend/", 404, "unknown_user"),
        ("/recommend/1/2", 404, "unknown_user"),
        ("/recommend/%00", 404, "unknown_user"),
        ("/recommend/%ff%fe", 404, "unknown_user"),
        ("/recommend/" + "9" * 5000, 404, "unknown_user"),
        ("/recommend/٣", 404, "unknown_user"),
        ("/recommend/1?k=0", 422, "bad_request"),
        ("/recommend/1?k=-1", 422, "bad_request"),
        ("/recommend/1?k=x", 422, "bad_request"),
        ("/recommend/1?k=", 422, "bad_request"),
        ("/recommend/1?k=1.5", 422, "bad_request"),
        ("/recommend/1?k=" + "9" * 5000, 422, "bad_request"),
        (f"/recommend/1?k={SHOWN + 1}", 422, "bad_request"),
        ("/recommend/1?viewed=perhaps", 422, "bad_request"),
        ("/recommend/1?by=nobody", 404, "unknown_head"),
        ("/recommend/1?by=", 404, "unknown_head"),
        ("/similar/999", 404, "unknown_item"),
        ("/similar/1?k=0", 422, "bad_request"),
        (f"/similar/1?k={SHOWN + 1}", 422, "bad_request"),
        ("/similar/1?head=consensus", 404, "unknown_head"),
        ("/explain/999/1", 404, "unknown_user"),
        ("/explain/1/999", 404, "unknown_item"),
        ("/explain/1/2/3", 404, "not_found"),
        ("/explain/1", 404, "not_found"),
        ("/nothing", 404, "not_found"),
        ("/Health", 404, "not_found"),
        ("/health/", 404, "not_found"),
        ("/explorer/../routes.py", 404, "not_found"),
        ("/explorer/nothing.js", 404, "not_found"),
        ("/redoc", 404, "not_found"),
    ],
)
def test_a_wrong_question_is_answered_in_one_shape(client: Client, path: str, status: int, kind: str) -> None:
    assert problem(client.get(path)) == (status, kind)


def test_an_unknown_id_is_told_where_it_was_looked_for(client: Client) -> None:
    message = client.get("/similar/999").json()["detail"]
    assert message == "no item is called 999 in the prepared log (its ids are integers)"  # the log itself may have it


@pytest.mark.parametrize(
    ("body", "status", "kind", "where"),
    [
        ("{", 400, "bad_request", "body"),
        ("", 400, "bad_request", "body"),
        ("[]", 422, "bad_request", "body"),
        ("null", 422, "bad_request", "body"),
        ("NaN", 422, "bad_request", "body"),
        ("[" * 100_000, 413, "too_large", "body"),
        ("[" * 1900, 400, "bad_request", None),
        ('{"users": [' + "1" * 1900, 400, "bad_request", None),
        ("{}", 422, "bad_request", "body"),
        ('{"users": [1], "history": [1]}', 422, "bad_request", "body"),
        ('{"users": [1], "wrong": 1}', 422, "bad_request", "body.wrong"),
        ('{"users": 1}', 422, "bad_request", "body.users"),
        ('{"users": [1, true]}', 422, "bad_request", "body.users.1"),
        ('{"users": [1.5]}', 422, "bad_request", "body.users.0"),
        ('{"users": [null]}', 422, "bad_request", "body.users.0"),
        ('{"users": ["\\ud800"], "popular": true}', 400, "bad_request", "body"),
        ('{"histories": {"\\ud800": []}}', 400, "bad_request", None),
        ('{"users": [1], "k": 0}', 422, "bad_request", "body.k"),
        ('{"users": [1], "k": "5"}', 422, "bad_request", "body.k"),
        ('{"users": [1], "k": 13}', 422, "bad_request", "body.k"),
        ('{"users": [1, 999]}', 404, "unknown_user", "body.users.1"),
        ('{"users": ["1"]}', 404, "unknown_user", "body.users.0"),
        ('{"users": [%s]}' % ("9" * 100), 404, "unknown_user", "body.users.0"),
        ('{"users": [1, 1, 1, 1, 1]}', 413, "too_large", "body.users"),
        ('{"users": [1], "by": "nobody"}', 404, "unknown_head", "body.by"),
        ('{"users": [1], "items": [1, "x"], "unknown_items": "error"}', 404, "unknown_item", "body.items.1"),
        ('{"users": [1], "exclude": {"1": [999]}, "unknown_items": "error"}', 404, "unknown_item", "body.exclude.1.0"),
        ('{"users": [1], "unknown_items": "raise"}', 422, "bad_request", "body.unknown_items"),
        ('{"history": [1, 999], "unknown_items": "error"}', 404, "unknown_item", "body.history.1"),
        ('{"history": [1, 2, 3, 4, 5, 6]}', 413, "too_large", "body.history"),
        ('{"history": [1], "items": {"1": [1]}}', 422, "bad_request", None),
        ('{"histories": {"a": [1, 2, 3, 4, 5, 6]}}', 413, "too_large", "body.histories.a"),
        ('{"histories": {"a": [], "b": [], "c": [], "d": [], "e": []}}', 413, "too_large", "body.histories"),
        ('{"histories": {"a": ["x"]}, "unknown_items": "error"}', 404, "unknown_item", "body.histories.a.0"),
    ],
)
def test_a_wrong_body_is_answered_in_one_shape(
    client: Client, body: str, status: int, kind: str, where: str | None
) -> None:
    answer = client("POST", "/recommend", content=body.encode(), headers=JSON)
    assert problem(answer) == (status, kind)
    if where is not None:
        assert answer.json()["where"] == where


@pytest.mark.parametrize("path", ["/recommend", "/explore", "/reload"])
def test_a_body_that_is_not_said_to_be_json_is_told_so(client: Client, path: str) -> None:
    form = {"content-type": "application/x-www-form-urlencoded", "authorization": f"Bearer {ADMIN}"}  # as by curl -d
    answer = client("POST", path, content=b'{"history": [1], "run": null}', headers=form)
    assert problem(answer) == (422, "bad_request")
    assert "Content-Type: application/json" in answer.json()["detail"]
    assert answer.json()["where"] == "header.content-type"


def test_at_the_border_of_a_limit_all_is_well(client: Client) -> None:
    assert client.get(f"/recommend/1?k={SHOWN}").status_code == 200
    assert len(client.get(f"/recommend/1?k={SHOWN}&by=bpr&viewed=true").json()["items"]) == SHOWN
    assert len(client.post("/recommend", {"users": [1, 2, 3, 4]}).json()["lists"]) == 4
    assert len(client.post("/recommend", {"history": [1, 2, 3, 4, 5]}).json()["lists"]) == 1
    assert client.post("/recommend", {"histories": {name: [1, 2] for name in "abcd"}}).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_have_its_last_byte_and_no_more(client: Client, chunked: bool) -> None:
    async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
        for begin in range(0, len(body), 100):
            yield body[begin : begin + 100]

    for size, status in ((LIMITS.body, 200), (LIMITS.body + 1, 413)):
        body = b'{"users": [1]}'.ljust(size)
        answer = client("POST", "/recommend", content=in_pieces(body) if chunked else body, headers=JSON)
        assert answer.status_code == status
    assert problem(answer) == (413, "too_large")
    assert answer.headers["connection"] == "close"


def test_an_endless_body_is_not_read_to_its_end(client: Client) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1 << 16
            yield b" " * (1 << 16)

    assert problem(client("POST", "/recommend", content=endless(), headers=JSON)) == (413, "too_large")
    assert read < 20 << 20


def test_a_body_that_does_not_come_is_not_waited_for(client: Client) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    assert problem(client("POST", "/recommend", content=slow(), headers=JSON)) == (408, "too_slow")


def test_more_requests_than_may_be_at_a_time_are_sent_away(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concf.service.batching.IN_LOOP", 0)  # so that they wait for a thread
    answers = client.together(["/recommend/1?by=bpr"] * 9)
    assert sorted({answer.status_code for answer in answers}) == [200, 503]
    assert [answer.status_code for answer in answers].count(200) == LIMITS.in_flight
    assert problem(answers[-1]) == (503, "busy")
    assert answers[-1].headers["retry-after"] == "1"
    assert client.get("/recommend/1").status_code == 200


def test_another_method_is_told_which_there_are(client: Client) -> None:
    answer = client("DELETE", "/recommend/1")
    assert problem(answer) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert problem(client("PUT", "/recommend")) == (405, "method_not_allowed")


def test_a_mistake_of_the_service_says_so_and_no_more(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concf.service.routes.answers.lists", lambda *_: 1 / 0)
    answer = client.post("/recommend", {"users": [1]})
    assert problem(answer) == (500, "internal")
    assert "division" not in answer.text


def test_a_mistake_of_the_library_is_a_bad_request() -> None:
    with Client(loaded(run_folder())) as client:
        answer = client.get(f"/recommend/1?k={SHOWN + 1}")
        assert problem(answer) == (400, "bad_request")
        assert f"consensus keeps {SHOWN} places" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/recommend/1", "/recommend", "/similar/1", "/run", "/metrics", "/nothing"])
def test_with_a_token_only_who_shows_it_is_answered(service: Service, path: str) -> None:
    with Client(service, token="s3cret") as client:
        for header in (
            None,
            "s3cret",
            "Bearer",
            "Bearer ",
            "Bearer S3cret",
            "Bearer s3cre",
            "Bearer s3crett",
            "Basic s3cret",
            "Bearers3cret",
        ):
            answer = client.get(path, headers={"authorization": header} if header else {})
            assert problem(answer) == (401, "unauthorised")
            assert answer.headers["www-authenticate"] == "Bearer"
        for scheme in ("Bearer", "bearer"):  # its letters may be of any size (RFC 9110), the token's may not
            assert client.get(path, headers={"authorization": f"{scheme} s3cret"}).status_code in (200, 404, 405)
        assert client.get(path, headers={"authorization": "Bearer s3cret\xff".encode("latin-1")}).status_code == 401


@pytest.mark.parametrize("path", ["/health", "/ready", "/", "/docs", "/openapi.json", "/explorer/index.html"])
def test_what_needs_no_token(service: Service, path: str) -> None:
    with Client(service, token="s3cret") as client:
        assert client.get(path).status_code == 200


def test_the_document_says_limits_and_token(service: Service) -> None:
    with Client(service, token="s3cret") as client:
        document = client.get("/openapi.json").json()
    one = document["paths"]["/recommend/{user}"]["get"]
    assert next(each for each in one["parameters"] if each["name"] == "k")["schema"]["maximum"] == LIMITS.k
    parts = document["components"]["schemas"]
    assert parts["UsersRequest"]["properties"]["users"]["maxItems"] == LIMITS.users
    assert parts["HistoryRequest"]["properties"]["history"]["maxItems"] == LIMITS.history
    assert parts["HistoriesRequest"]["properties"]["histories"]["maxProperties"] == LIMITS.users
    assert one["security"] == [{"token": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert all(
        "ProblemDetails" in json.dumps(one["responses"][status])
        for status in ("400", "401", "404", "413", "422", "503")
    )


def test_alive_before_it_is_ready() -> None:
    service = Service(Loader(), run_folder())
    with Client(service) as client:
        for path in ("/ready", "/recommend/1", "/recommend/1?viewed=true", "/run", "/similar/1"):
            assert problem(client.get(path)) == (503, "not_ready")
        assert client.get("/health").json() == {"status": "alive"}
        assert "concf_run_version 0.0" in client.get("/metrics").text
        service.reload()
        assert client.get("/ready").json() == {"status": "ready", "run": run_folder().name}
        service.closing = True
        assert problem(client.get("/ready")) == (503, "not_ready")
        assert client.get("/recommend/1").status_code == 200  # who still comes is answered


def counted(client: Client) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_metrics_count_by_route_method_and_status(service: Service) -> None:
    with Client(service) as client:
        for path in ("/recommend/1", "/recommend/2?k=3", "/recommend/1?viewed=true", "/recommend/999", "/similar/1"):
            client.get(path)
        for number in range(20):
            client.get(f"/nothing/{number}")
            client(f"VERB{number}", f"/recommend/{number}")
        client("DELETE", "/similar/1")
        counts = counted(client)
    assert counts['concf_requests_total{method="GET",route="/recommend/{user}",status="200"}'] == 3
    assert counts['concf_requests_total{method="GET",route="/recommend/{user}",status="404"}'] == 1
    assert counts['concf_requests_total{method="GET",route="/similar/{item}",status="200"}'] == 1
    assert counts['concf_requests_total{method="GET",route="unmatched",status="404"}'] == 20
    assert counts['concf_request_seconds_count{route="/similar/{item}"}'] in (1, 2)
    assert counts["concf_requests_in_flight"] == 1  # the question itself
    assert counts["concf_run_version"] == service.version
    assert counts["concf_run_loaded_timestamp_seconds"] == pytest.approx(service.loaded)
    assert len([name for name in counts if name.startswith("concf_requests_total")]) < 10
    assert not [name for name in counts if "VERB" in name or "nothing" in name]


def test_a_caller_who_leaves_is_no_mistake_of_the_service(service: Service) -> None:
    async def leaves() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def nobody_listens(_message: Any) -> None:
        pytest.fail("an answer to nobody")

    with Client(service) as client:
        scope = {"type": "http", "method": "POST", "path": "/recommend", "query_string": b""}
        scope["headers"] = [(b"host", b"localhost")]
        asyncio.run(client.app(scope, leaves, nobody_listens))
        counts = counted(client)
    assert counts['concf_requests_total{method="POST",route="/recommend",status="499"}'] == 1


def test_the_pages_are_served_safely(client: Client) -> None:
    for path, kind in (("/", "text/html"), ("/docs", "text/html"), ("/explorer/explorer.css", "text/css")):
        page = client.get(path)
        assert page.status_code == 200
        assert page.headers["content-type"].startswith(kind)
        assert page.headers["content-security-policy"] == POLICY
        assert POLICY.startswith("default-src 'self'")
        assert page.headers["cache-control"] == "no-cache"
        assert page.headers["x-content-type-options"] == "nosniff"
        again = client.get(path, headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("accepts", ["gzip", "br, gzip;q=0.8"])
def test_the_pages_are_sent_small_to_who_takes_them_so(client: Client, accepts: str) -> None:
    for path in ("/", "/docs", "/explorer/explorer.js", "/explorer/explorer.css"):
        plain = client.get(path, headers={"accept-encoding": "identity"})
        small = client.get(path, headers={"accept-encoding": accepts})
        assert small.content == plain.content
        assert (small.headers["content-encoding"], plain.headers.get("content-encoding")) == ("gzip", None)
        assert int(small.headers["content-length"]) < 0.6 * int(plain.headers["content-length"])
        assert small.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
        tag = small.headers["etag"]
        assert tag == plain.headers["etag"]
        assert tag.startswith("W/")  # other bytes
        for tags in (tag, tag.removeprefix("W/"), f'"x", {tag}'):
            again = client.get(path, headers={"accept-encoding": accepts, "if-none-match": tags})
            assert (again.status_code, again.content, again.headers["vary"]) == (304, b"", "Accept-Encoding")


@pytest.mark.parametrize("accepts", ["", "identity", "br"])
def test_the_pages_are_sent_as_they_are_to_who_does_not(client: Client, accepts: str) -> None:
    assert "content-encoding" not in client.get("/", headers={"accept-encoding": accepts}).headers


def test_a_run_in_the_folder_where_one_is_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run_folder())
    assert loaded(Path()).model.name == run_folder().name


def test_ids_of_any_characters_go_through_a_path() -> None:
    with Client(loaded(run_folder("text"))) as client:
        model = client.service.model.recommender
        for user in model.user_ids.values.tolist():
            assert client.get(f"/recommend/{segment(user)}").json()["user"] == user
            for item in model.item_ids.values.tolist()[::4]:
                answer = client.get(f"/explain/{segment(user)}/{segment(item)}").json()
                assert (answer["user"], answer["item"]) == (user, item)
        assert client.get("/recommend/a/b").json()["user"] == "a/b"  # where it can only be one id
        assert problem(client.get("/explain/a/b/a%20b")) == (404, "not_found")


def test_a_problem_is_an_error_of_the_library() -> None:
    with pytest.raises(ConcfError, match="being loaded"):
        _: Any = Service(Loader(), run_folder()).model

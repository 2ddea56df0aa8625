"""The standing rule: what it forbids is shown nowhere, lists are as full as they can be, and the file is read again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_service import Client, loaded, problem, run_folder

from concf.errors import ConfigError
from concf.inference.rules import Rules
from concf.service.loading import Loader

PRICES = pl.DataFrame({"item": range(30), "title": "x", "price": range(30)})
BLOCKED = (3, 11)


class Ruled(Client):
    """A service with a file of rules."""

    file: Path

    def write(self, text: str) -> None:
        """Change the file."""
        before = self.file.stat().st_mtime_ns
        self.file.write_text(text)
        os.utime(self.file, ns=(before + 10**9, before + 10**9))

    def everything(self) -> list[list[Any]]:
        """All lists that the routes give for a user."""
        bodies: list[dict[str, Any]] = [
            {"users": [5], "by": "bpr"},
            {"history": [1, 2]},
            {"users": [5], "items": [3, 4]},
        ]
        lists = [self.post("/recommend", body).json()["lists"][0]["items"] for body in bodies]
        paths = (
            "recommend/5",
            "recommend/5?by=cml",
            "recommend/5?viewed=true",
            "recommend/x?popular=true",
            "similar/7",
        )
        lists += [self.get(f"/{path}").json()["items"] for path in paths]
        for view in (self.get("/explore/5").json(), self.post("/explore", {"history": [1, 2]}).json()):
            lists += [each["items"] for each in (view["consensus"], *view["lists"])]
        return [[item["item"] for item in each] for each in lists]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Ruled]:
    PRICES.write_csv(tmp_path / "items.csv")
    (tmp_path / "rules.toml").write_text(f"exclude = [{BLOCKED[0]}, {BLOCKED[1]}, 999]\nwhere = 'price < 22'")
    loader = Loader(catalogue=tmp_path / "items.csv", rules=tmp_path / "rules.toml")
    with Ruled(loaded(run_folder(), loader=loader)) as client:
        client.file = tmp_path / "rules.toml"
        yield client


def test_nothing_forbidden_is_shown_and_lists_are_filled_up(client: Ruled) -> None:
    allowed = {item for item in range(22) if item not in BLOCKED}
    assert all(items and set(items) <= allowed for items in client.everything())
    model = client.service.model.recommender
    for user in range(40):
        for by in ("consensus", "bpr"):
            frame = PRICES.filter(~pl.col("item").is_in(BLOCKED))
            wanted = model.recommend([user], 10, by=by, rules=Rules(frame, where="price < 22"), frame="polars")
            found = client.get(f"/recommend/{user}?by={by}").json()["items"]
            assert [each["item"] for each in found] == wanted["item_id"].to_list()


def test_the_file_is_read_again_and_a_broken_one_changes_nothing(
    client: Ruled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client.write("exclude = [1, '3']")
    free = client.everything()
    assert "the log does not have: '3'" in caplog.text
    assert {item for items in free for item in items} & {3, 11, 25}
    assert not {item for items in free for item in items} & {1}
    for broken in ("exclude = 5", "nonsense", "where = 'price < 0'", "where = 'colour = 1'", "what = 1"):
        client.write(broken)
        assert client.everything() == free
        assert f"as they were: {client.file}" in caplog.messages[-1]
    client.file.unlink()
    assert client.everything() == free
    (tmp_path / "bad.toml").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        Loader(rules=tmp_path / "bad.toml")(run_folder())
    assert problem(client.post("/recommend", {"users": [1], "where": "price < 0"})) == (409, "refused_rule")
    assert json.loads(client.get("/ready").content)["status"] == "ready"

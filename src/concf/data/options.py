"""Options to read, filter and split a log: their types, and what they do. The command line has the same ones."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

Format = Literal["auto", "table", "parquet", "jsonl", "user-lines", "counted-lines"]


class ReadingOptions(TypedDict, total=False):
    """Options to read a log; None is the same as leaving an option out."""

    user: Annotated[str | None, "Column of the user (its index from 0 if no header)."]
    item: Annotated[str | None, "Column of the item."]
    rating: Annotated[str | None, "Column of an explicit rating (`none`: leave it out)."]
    min_rating: Annotated[float | None, "Rows rated lower are not interactions."]
    dislike_below: Annotated[float | None, "Rows rated lower are dislikes, which are never recommended."]
    count: Annotated[str | None, "Column of the number of events, or of weights (`none`: leave it out)."]
    timestamp: Annotated[str | None, "Column of the time (`none`: leave it out)."]
    time_format: Annotated[str | None, "Format of times in text that are not ISO 8601, such as %d/%m/%Y."]
    bad_times: Annotated[
        Literal["refuse", "drop"] | None,
        "Drop rows whose time is 0, negative, in the future or in another unit than most. Else they are refused.",
    ]
    format: Annotated[Format | None, "auto, table, parquet, jsonl, user-lines (id first), counted-lines (count first)."]
    ordered: Annotated[bool | None, "With a line per user: its items are in order of time."]
    separator: Annotated[str | None, "Separator of a text table, such as ';' or '::'."]
    header: Annotated[bool | None, "Whether line 1 names the columns."]


class LogOptions(ReadingOptions, total=False):
    """Options to read, filter and split a log."""

    min_user: Annotated[int | None, "Interactions a user must have."]
    min_item: Annotated[int | None, "Interactions an item must have."]
    counts: Annotated[Literal["raw", "distinct"] | None, "Count `raw` events or `distinct` pairs."]
    core: Annotated[bool | None, "Repeat until nothing changes (k-core)."]
    protocol: Annotated[str | None, "paper, released, random, leave-last, time, new-users, new-items or given."]
    valid: Annotated[
        Any,
        "Share held out for validation, or with `time` a duration such as 28d; with `new-users`, of the users; with `given`, of the training file, or a file.",
    ]
    test: Annotated[
        Any,
        "Share held out for test, or with `time` a duration such as 28d (with `new-users`, of the users; with `new-items`, of the items); with `given`, a file.",
    ]
    newest: Annotated[bool | None, "With `given`: the share for validation is of each user's newest training items."]
    at_least: Annotated[int | None, "With `random`: items held out of every user who has enough, in each part."]
    last: Annotated[int | None, "With `leave-last`: how many."]
    valid_from: Annotated[
        float | str | None, "With `time`: start of the validation part, a date or in the log's own unit."
    ]
    test_from: Annotated[float | str | None, "With `time`: start of the test part, such as 2026-11-01."]
    target_share: Annotated[float | None, "With `new-users`: share of a held-out user's items that are to be found."]

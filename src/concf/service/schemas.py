"""Forms of requests and answers, with their limits, for the OpenAPI document."""

from __future__ import annotations

import re
from typing import Annotated, Any, Required, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema
from pydantic.functional_validators import AfterValidator, BeforeValidator, PlainValidator, model_validator
from typing_extensions import TypedDict

from concf.inference.lookup import LEAST_WEIGHT
from concf.inference.rules import LONGEST

K, LONGEST_LIST = 10, 200  # items of a list by default, and at most
USERS, HISTORY = 1_000, 10_000  # users of a batch, items of a history
BODY, VALUES = 1 << 20, 4 * HISTORY  # bytes and values of a body: parsing it takes milliseconds
QUERY, FIELDS = 1 << 13, 32  # bytes of a query; fields of a query or a body
TERMS = 32  # of a condition
REPORTED = 20  # unknown items that an answer names for each list


def _id(value: object) -> int | str:
    if isinstance(value, int | str) and not isinstance(value, bool):
        return value
    raise ValueError("expected an id: an integer or text")


def terms(where: str | None) -> int:
    """Count the comparisons, listed values and wildcards of a condition."""
    sign = r"(?i)\b(?:and|or|not|like|ilike|between|when|\w+\()|[<>=!]+|[,%*/+]"
    return 0 if where is None else len(re.findall(sign, where)) + 1


def _condition(where: str) -> str:
    plain = re.sub(r"""'[^']*'|"[^"]*\"""", " ", where)
    if re.search(r"(?i)~|\b(?:rlike|regexp|similar)", plain):
        raise ValueError("regular expressions are not allowed in requests; use like, starts_with or ends_with")
    if (count := terms(where)) > TERMS:
        raise ValueError(f"the condition has {count} terms, but at most {TERMS} are allowed; for long lists use items")
    return where


Id = Annotated[  # as the log has it: 5 is not "5"
    int | str, PlainValidator(_id), WithJsonSchema({"type": ["integer", "string"]})
]
Ids = Annotated[list[Id], Field(max_length=HISTORY, fail_fast=True)]  # of many mistakes, the first is enough


class Event(TypedDict, total=False):
    """An item of a history. time: a date, or a time in the log's unit; weight: 1 for an average interaction"""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)  # type: ignore[misc]
    item: Required[Id]
    time: float | str | None
    weight: Annotated[float, Field(ge=LEAST_WEIGHT, le=1 / LEAST_WEIGHT)]


AnEvent = Annotated[
    Annotated[Id, Tag("id")] | Annotated[Event, Tag("event")],
    Discriminator(lambda value: "event" if isinstance(value, dict) else "id"),
]
Events = Annotated[list[AnEvent], Field(max_length=HISTORY, fail_fast=True)]  # oldest first
ItemLists = Ids | Annotated[dict[str, Ids], Field(max_length=USERS)]  # for all users, or by user
Where = Annotated[str, Field(max_length=LONGEST), AfterValidator(_condition)]
WHOLE = BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)  # 5.0 is 5 in JSON
Length = Annotated[int, Field(ge=1, le=LONGEST_LIST, description="items of a list"), WHOLE]


class Request(BaseModel):
    """A query or a body without unknown fields; bodies are validated strictly: "5" is no integer."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class SimilarQuery(Request):
    """The query of a request for similar items."""

    k: Length = K
    head: str | None = Field(None, description="the head whose vectors are compared; the best head by default")


class ExplainQuery(Request):
    """The query of a request for an explanation."""

    item: str = Field(description="the id of an item")


class ListQuery(Request):
    """The query of a request for one list."""

    k: Length = K
    by: str | None = Field(None, description="consensus, R-consensus or a head; the consensus by default")
    viewed: bool = Field(False, description="include items that the user has used")
    popular: bool = Field(False, description="give users who are not in the log the most popular items")


class ListsRequest(ListQuery):
    """Lists of users of the log, of a new user with a history, or of several with histories by name; a name of the log
    has used these items too. items: only these may be listed; exclude: these may not
    """

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [each]} for each in ("users", "history", "histories")]}
    )
    users: Annotated[list[Id], Field(max_length=USERS, fail_fast=True)] = []
    history: Events = []
    histories: Annotated[dict[str, Events], Field(max_length=USERS)] = {}
    items: ItemLists | None = None
    exclude: ItemLists | None = None
    where: Where | None = Field(None, description="a condition on the catalogue, as price < 20")
    at_most: Annotated[dict[str, Annotated[int, Field(ge=1), WHOLE]], Field(max_length=FIELDS)] | None = Field(
        None, description="column: items of one value"
    )
    diversity: float = Field(0.0, ge=0, le=1, description="how much an item loses by its similarity to those above it")
    popularity_penalty: float = Field(0.0, ge=0, le=1, description="how much an item loses by its popularity")
    at: float | str | None = Field(None, description="when the lists are shown: a date, or a time in the log's unit")

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        if len(self.model_fields_set & {"users", "history", "histories"}) != 1:
            raise ValueError("expected an object with one of users, history and histories")
        return self


class SearchQuery(Request):
    """The query of the explorer's searches."""

    q: str = Field("", max_length=LONGEST, description="text to search for; empty: the most used")
    limit: int = Field(20, ge=1, le=100, description="most results")
    random: bool = Field(False, description="random results instead")


class ViewQuery(Request):
    """The query of the explorer's view of a user."""

    k: Length = K
    held_out: bool = Field(False, description="whether held-out items may be listed")
    where: Where | None = None


class HistoryView(Request):
    """A history of a new user for the explorer, oldest item first."""

    history: Events
    k: Length = K
    where: Where | None = None


class Item(TypedDict):
    """An item of a list. rank: from 1; title: from the catalogue, if there is one"""

    item: Id
    rank: int
    score: float
    title: str | None


class UserList(TypedDict):
    """The recommendations for one user. note: how they were made, if not in the usual way"""

    user: Id
    by: str
    note: str | None
    items: list[Item]


class OneOfSeveral(TypedDict):
    """The list of one of several users. user: null for a history without a name; unknown_items: those ignored in this
    user's history and own lists, the first of them; error: why there is no list, for a user who is not in the log
    """

    user: Id | None
    items: list[Item]
    unknown_items: list[Id]
    error: str | None


class Lists(TypedDict):
    """The recommendations for several users, in the order of the request. unknown_items: those ignored in the lists
    for all users (items, exclude), the first of them
    """

    by: str
    note: str | None
    unknown_items: list[Id]
    lists: list[OneOfSeveral]


Answer = dict[str, Any]

"""The forms of requests and answers, as the OpenAPI document has them."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NotRequired

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
    TypeAdapter,
    WithJsonSchema,
)
from typing_extensions import TypedDict

from concf.errors import ConfigError
from concf.inference.explain import Reasons
from concf.inference.lookup import LEAST_WEIGHT, Event, as_events
from concf.inference.rules import LONGEST
from concf.service.problems import FORMS, Kind

K = 10  # items of a list, unless a request says otherwise
REPORTED = 20  # unknown items that an answer names for each list
TERMS = 32  # of a condition


def _whole(number: object) -> object:
    """In JSON 5.0 is an integer."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _id(value: object) -> int | str:
    number = value if type(value) in (int, str) else _whole(value)
    if isinstance(number, int | str) and not isinstance(number, bool):
        return number
    raise ValueError("expected an id: an integer or text")


def _ids(values: object) -> list[int | str]:
    """Check all ids of a list at once, since a history may have thousands."""
    if isinstance(values, list) and set(map(type, values)) <= {int, str}:
        return values
    return ONE_BY_ONE.validate_python(values)


def terms(where: str) -> int:
    """Count the comparisons, listed values and wildcards of a condition."""
    return len(re.findall(r"(?i)\b(?:and|or|not|like|ilike|between|when|\w+\()|[<>=!]+|[,%*/+]", where)) + 1


def _condition(where: str) -> str:
    plain = re.sub(r"""'[^']*'|"[^"]*\"""", " ", where)
    if re.search(r"(?i)~|\b(?:rlike|regexp|similar)", plain):
        raise ValueError("regular expressions are not allowed in requests; use like, starts_with or ends_with")
    if (count := terms(where)) > TERMS:
        raise ValueError(f"the condition has {count} terms, but at most {TERMS} are allowed; for long lists use items")
    return where


Text = StrictStr
Whole = Annotated[StrictInt, BeforeValidator(_whole)]
Count = Annotated[StrictInt, Field(ge=1), BeforeValidator(_whole)]
Id = Annotated[  # as the log has it: 5 is not "5"
    int | str, PlainValidator(_id), WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]})
]
ONE_BY_ONE = TypeAdapter(Annotated[list[Id], Field(fail_fast=True)])  # of many mistakes, the first is enough
Ids = Annotated[list[int | str], PlainValidator(_ids), WithJsonSchema(ONE_BY_ONE.json_schema())]
Where = Annotated[Text, Field(max_length=LONGEST), AfterValidator(_condition)]
EVENT = {
    "type": "object", "required": ["item"], "additionalProperties": False, "properties": {
        "item": {"type": ["integer", "string"]}, "time": {"type": ["number", "string", "null"]},
        "weight": {"type": "number", "minimum": LEAST_WEIGHT, "maximum": 1 / LEAST_WEIGHT},
    },
}  # fmt: skip


def _event(value: object) -> Id | Event:
    """An id, or an item with its time and weight."""
    if not isinstance(value, dict):
        return _id(value)
    try:
        (event,) = as_events([value])
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return {**event, "item": _id(event["item"])}


AnEvent = Annotated[
    int | str | Event, PlainValidator(_event), WithJsonSchema({"anyOf": [{"type": ["integer", "string"]}, EVENT]})
]
Events = Annotated[list[AnEvent], Field(fail_fast=True)]  # oldest first
UnknownIds = Annotated[list[Id], Field(max_length=REPORTED)]
UnknownItems = Literal["ignore", "error"]
ItemLists = Ids | dict[Text, Ids]  # for all users, or by user


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
    unknown_items: UnknownIds
    error: str | None


class Lists(TypedDict):
    """The recommendations for several users, in the order of the request. unknown_items: those ignored in the lists
    for all users (items, exclude), the first of them
    """

    by: str
    note: str | None
    unknown_items: UnknownIds
    lists: list[OneOfSeveral]


class SimilarItems(TypedDict):
    """The nearest items by the cosine of a head's vectors."""

    item: Id
    head: str
    items: list[Item]


class Explanation(Reasons):
    """Why an item has its rank; see `concf.inference.explain.Reasons`."""

    user: Id
    item: Id
    title: str | None


class Status(TypedDict):
    """The state of the service. run: the name of the run, once it is served"""

    status: Literal["alive", "ready"]
    run: NotRequired[str]


class Reloaded(TypedDict):
    """run: the name of its folder; id: of the run; version: how many runs the service has loaded, including this one"""

    run: str
    id: str
    version: int


class ProblemDetails(TypedDict):
    """The shape of every error (RFC 9457). title: what the status means; where: the part of the request at fault"""

    type: Literal["about:blank"]
    title: str
    status: int
    detail: str
    kind: Kind
    where: str | None


class Request(BaseModel):
    """A query or a body without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class ReloadRequest(Request):
    """run: the folder of another run; null: the same folder again"""

    run: str | None = None


class NoQuery(Request):
    """No query."""


class SimilarQuery(Request):
    """The query of a request for similar items."""

    k: int = Field(K, ge=1, description="items of the list")
    head: str | None = Field(None, description="the head whose vectors are compared; the best head by default")


class ListQuery(Request):
    """The query of a request for one list."""

    k: int = Field(K, ge=1, description="items of the list")
    by: str | None = Field(None, description="consensus, R-consensus or a head; the consensus by default")
    viewed: bool = Field(False, description="include items that the user has used")
    popular: bool = Field(False, description="give users who are not in the log the most popular items")


class ListsRequest(Request):
    """Fields that requests for several lists share. items: only these may be listed; exclude: these may not

    unknown_items: whether items that are not in the prepared log are ignored or are an error
    """

    k: Whole = Field(K, ge=1)
    by: Text | None = None
    viewed: StrictBool = Field(False, description="include items that the user has used")
    items: ItemLists | None = None
    exclude: ItemLists | None = None
    unknown_items: UnknownItems = "ignore"
    where: Where | None = Field(None, description="a condition on the catalogue, as price < 20")
    at_most: dict[Text, Count] | None = Field(None, description="column: items of one value")
    diversity: float = Field(0.0, ge=0, le=1, strict=True, description="what similarity to items above costs an item")
    popularity_penalty: float = Field(0.0, ge=0, le=1, strict=True, description="what popularity costs an item")


class UsersRequest(ListsRequest):
    """Users of the log. popular: give those who are not in the log the most popular items"""

    users: Ids
    popular: StrictBool = False


class HistoryRequest(ListsRequest):
    """A new user who has used these items, the oldest first."""

    history: Events
    items: Ids | None = None
    exclude: Ids | None = None


class HistoriesRequest(ListsRequest):
    """Several new users by name; a name of the log has used these items too."""

    histories: dict[Text, Events]


def _form(body: object) -> str | None:
    """The form of a body; None if it has none or more than one."""
    names = zip(("users", "history", "histories"), FORMS, strict=True)
    forms = [form for name, form in names if name in body] if isinstance(body, dict) else []
    return forms[0] if len(forms) == 1 else None


AnyListsRequest = Annotated[
    Annotated[UsersRequest, Tag(FORMS[0])]
    | Annotated[HistoryRequest, Tag(FORMS[1])]
    | Annotated[HistoriesRequest, Tag(FORMS[2])],
    Discriminator(
        _form, custom_error_type="one_of_three",
        custom_error_message="expected an object with one of users, history and histories",
    ),
]  # fmt: skip

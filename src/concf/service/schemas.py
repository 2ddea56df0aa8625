"""What goes in and out, as the OpenAPI document has it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    Tag,
)
from pydantic import WithJsonSchema as SaidAs

from concf.service.problems import FORMS, Kind


def _whole(number: Any) -> Any:
    """To JSON 5.0 is an integer."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _text(value: Any) -> str:
    """JSON can spell half a character, which no log has and no answer can repeat."""
    if not isinstance(value, str) or not _is_unicode(value):
        raise ValueError("expected text")
    return value


def _id(value: Any) -> int | str:
    found = _whole(value)
    if isinstance(found, int) and not isinstance(found, bool):
        return found
    if not isinstance(found, str) or not _is_unicode(found):
        raise ValueError("expected an id: an integer or text")
    return found


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


Text = Annotated[str, PlainValidator(_text), SaidAs({"type": "string"})]
Whole = Annotated[StrictInt, BeforeValidator(_whole)]
Id = Annotated[  # as the log has it: 5 is not "5"
    int | str, PlainValidator(_id), SaidAs({"anyOf": [{"type": "integer"}, {"type": "string"}]})
]
IGNORED = 20  # unknown items that an answer names of each list
Ignored = Annotated[list[Id], Field(max_length=IGNORED)]  # ids that the run does not have, the first of them
UnknownItems = Literal["ignore", "error"]
ByUser = list[Id] | dict[Text, list[Id]]  # for everyone, or by user


class Item(BaseModel):
    """A place of a list. rank: from 1; title: from the catalogue, if there is one"""

    item: Id
    rank: int
    score: float
    title: str | None


class UserList(BaseModel):
    """What one user is recommended. note: what there is to know about how it came about"""

    user: Id
    by: str
    note: str | None
    items: list[Item]


class OneOfSeveral(BaseModel):
    """The list of one user of several; of a history without a name the user is null."""

    user: Id | None
    items: list[Item]
    unknown_items: Ignored = Field(description="of this user's history and own lists, what was ignored")


class Lists(BaseModel):
    """What several users are recommended, in the order in which they were asked for."""

    by: str
    note: str | None
    unknown_items: Ignored = Field(description="of the lists for everyone (items, exclude), what was ignored")
    lists: list[OneOfSeveral]


class SimilarItems(BaseModel):
    """The nearest items by the cosine of a head's vectors."""

    item: Id
    head: str
    items: list[Item]


class HeadVote(BaseModel):
    """A head's word on an item. R (Eq. 10), C (Eq. 11): 0 without a vote

    rank: from 1, null if it was learned from, or if a fixed voter does not name it; score: null of a fixed voter
    """

    head: str
    rank: int | None
    score: float | None
    R: float
    C: float
    vote: float


class Explanation(BaseModel):
    """Why an item stands where it stands.

    rank: in the consensus, null if not there; importance: Eq. 12; re-ranked: what a re-ranker makes of it, null
    without one, and where the list does not have it
    """

    user: Id
    item: Id
    title: str | None
    rank: int | None
    importance: float
    reranked: float | None
    used_in_training: bool
    heads: list[HeadVote]


class Alive(BaseModel):
    """The process lives."""

    status: Literal["alive"]


class Ready(BaseModel):
    """A run is served."""

    status: Literal["ready"]
    run: str


class Reload(BaseModel):
    """run: the folder of another run; null: the same folder again"""

    model_config = ConfigDict(extra="forbid")

    run: str | None = None


class Reloaded(BaseModel):
    """version: how many runs this process has served, with this one"""

    run: str
    version: int


class Asking(BaseModel):
    """What every question has. items: only these may be shown; exclude: these may not

    unknown_items: what becomes of items that the log does not have, or that a filter left out
    """

    model_config = ConfigDict(extra="forbid")

    k: Whole = Field(10, ge=1)
    by: Text | None = None
    viewed: StrictBool = Field(False, description="also what the user has used")
    items: ByUser | None = None
    exclude: ByUser | None = None
    unknown_items: UnknownItems = "ignore"


class ForUsers(Asking):
    """Users of the log. popular: give those whom the log does not have what is used most"""

    users: list[Id]
    popular: StrictBool = False


class ForHistory(Asking):
    """Someone who has used these items."""

    history: list[Id]
    items: list[Id] | None = None
    exclude: list[Id] | None = None


class ForHistories(Asking):
    """Several, by names of yours; a name of the log has used these items too."""

    histories: dict[Text, list[Id]]


def _form(asked: Any) -> str | None:
    """Of a question as it came; None if it is none, or more than one."""
    names = zip(("users", "history", "histories"), FORMS, strict=True)
    given = [form for name, form in names if name in asked] if isinstance(asked, dict) else []
    return given[0] if len(given) == 1 else None


Asked = Annotated[
    Annotated[ForUsers, Tag("ForUsers")]
    | Annotated[ForHistory, Tag("ForHistory")]
    | Annotated[ForHistories, Tag("ForHistories")],
    Discriminator(
        _form, custom_error_type="one_of_three",
        custom_error_message="expected an object with one of users, history and histories",
    ),
]  # fmt: skip


class Mistake(BaseModel):
    """where: the part of the request that it is about"""

    kind: Kind
    message: str
    where: str | None


class Refusal(BaseModel):
    """Every error."""

    error: Mistake

"""The forms of the explorer's requests and answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, StrictBool
from typing_extensions import TypedDict

from concf.inference.explain import Aspect, Because, Kind, Vote
from concf.service.schemas import Events, Id, K, Request, UnknownIds, UnknownItems, Where, Whole

Part = Literal["training", "validation", "test"]


class SearchResult(TypedDict):
    """A result of a search. uses: how many items the user has used, or how many users have used the item"""

    id: Id
    title: str | None
    uses: int


class UsedItem(TypedDict):
    """part: the part of the log that has it for this user; null: the user has not used it, or the history is typed"""

    item: Id
    title: str | None
    part: Part | None


class ListedItem(TypedDict):
    """rank: from 1; score: the head's own; in the consensus the importance (Eq. 12) or the re-ranker's score; null
    for a fixed voter
    """

    item: Id
    rank: int
    score: float | None


class ItemList(TypedDict):
    """The first items of a head, at its own best epoch, of a fixed voter, or of the consensus."""

    by: str
    items: list[ListedItem]


class ExplainedItem(UsedItem):
    """votes: of every voter; because: the items of the history that it is most similar to

    contributions: what lifted it, relative to the user's mean candidate, in the order of `reranked` in `/run`; null for
    an item that was not re-ranked; attributes, picture: from the catalogue, the latter only if the operator allows its
    address
    """

    votes: list[Vote]
    because: list[Because]
    contributions: list[float] | None
    attributes: dict[str, str]
    picture: str | None


class View(TypedDict):
    """The lists of every voter for one user. consensus: null for a run of one head; items: all that a list has

    unknown_items: those of the requested history that the run does not have, the first of them
    """

    user: Id | None
    note: str | None
    unknown_items: UnknownIds
    history: list[UsedItem]
    lists: list[ItemList]
    consensus: ItemList | None
    items: list[ExplainedItem]


class SimilarUser(TypedDict):
    """score: the cosine of the two users' vectors; uses: how many items the user has used"""

    user: Id
    score: float
    uses: int


class SimilarUsers(TypedDict):
    """The nearest users by the cosine of a head's vectors."""

    user: Id
    head: str
    users: list[SimilarUser]


class Group(TypedDict):
    """What the re-ranker adds up; see `concf.inference.explain.Contribution`."""

    voter: str | None
    kind: Kind
    aspect: Aspect


class Facts(TypedDict):
    """The run that is served.

    about: head or fixed voter -> what it is, in a few words; reranked: what the re-ranker adds up, [] without one;
    top_k: how many of its first items a head votes for, null for all; temperature, consistency_temperature: T and T_c;
    cross_fitted: recommenders whose validation metric is cross-fitted; learned: the parts of the log that were learned
    from; compared: the name of the run of `--compare`; columns: the
    attributes that conditions may name
    """

    name: str
    users: int
    items: int
    interactions: int
    user_ids: str
    item_ids: str
    titles: bool
    columns: list[str]
    heads: list[str]
    about: dict[str, str]
    fixed_voters: list[str]
    voters: list[str]
    best_head: str
    why_best_head: str
    default: str
    has_consensus: bool
    reranked: list[Group]
    top_k: int | None
    temperature: float
    consistency_temperature: float | None
    metric: str
    validation: dict[str, float]
    cross_fitted: list[str]
    learned: list[Part]
    limits: dict[str, int]
    compared: str | None
    version: str


class ItemSearch(Request):
    """The query of a search."""

    q: str = Field("", max_length=1000, description="empty: those that are used most")
    limit: int = Field(20, ge=1, le=100, description="how many results at most")


class UserSearch(ItemSearch):
    """The query of a search for users."""

    random: bool = Field(False, description="random users instead")


class Compared(Request):
    """Selects the run: the one that is served, or that of `--compare`."""

    compared: bool = Field(False, description="query the run of --compare instead of the served one")


class Length(Request):
    """Length of the lists."""

    k: int = Field(K, ge=1, description="items of each list")


class ViewQuery(Compared, Length):
    """The query of a view of a user."""

    held_out: bool = Field(False, description="whether held-out items may be listed")
    where: Where | None = Field(None, description="a condition on the catalogue, as price < 20")


class HistoryView(Request):
    """A history of a new user, oldest item first. compared: whether to rank with the run that `--compare` names too"""

    history: Events
    k: Whole = Field(K, ge=1)
    unknown_items: UnknownItems = "ignore"
    compared: StrictBool = False
    where: Where | None = None

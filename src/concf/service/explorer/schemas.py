"""The forms of the explorer's requests and answers."""

from __future__ import annotations

from typing import NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from concf.inference.votes import Vote
from concf.service.schemas import Id, K, Request, UnknownIds, UnknownItems, Whole


class SearchResult(TypedDict):
    """A result of a search. uses: how many items the user has used, or how many users have used the item"""

    id: Id
    title: str | None
    uses: int


class UsedItem(TypedDict):
    """held_out: in the log, but not trained on"""

    item: Id
    title: str | None
    held_out: bool


class ListedItem(UsedItem):
    """rank: from 1; score: the head's own; in the consensus the importance (Eq. 12) or the re-ranker's score

    votes: in the consensus only
    """

    rank: int
    score: float
    votes: NotRequired[list[Vote]]


class ItemList(TypedDict):
    """The first items of a head, at its own best epoch, or of the consensus."""

    by: str
    items: list[ListedItem]


class OtherItem(TypedDict):
    """The votes for an item that a head lists and the consensus does not."""

    item: Id
    votes: list[Vote]


class View(TypedDict):
    """The lists of every head for one user. consensus: null for a run of one head

    unknown_items: those of the requested history that the run does not have, the first of them
    """

    user: Id | None
    note: str | None
    unknown_items: UnknownIds
    history: list[UsedItem]
    lists: list[ItemList]
    consensus: ItemList | None
    other_items: list[OtherItem]


class Facts(TypedDict):
    """The run that is served. objectives: head -> what it is trained on; top_k: how many of its first items a head
    votes for, null for all; temperature, consistency_temperature: T and T_c
    """

    name: str
    users: int
    items: int
    interactions: int
    user_ids: str
    item_ids: str
    titles: bool
    heads: list[str]
    objectives: dict[str, str]
    fixed_voters: list[str]
    voters: list[str]
    best_head: str
    default: str
    has_consensus: bool
    top_k: int | None
    temperature: float
    consistency_temperature: float | None
    metric: str
    validation: dict[str, float]
    limits: dict[str, int]
    version: str


class ItemSearch(Request):
    """The query of a search."""

    q: str = Field("", max_length=1000, description="empty: those that are used most")
    limit: int = Field(20, ge=1, le=100, description="how many results at most")


class UserSearch(ItemSearch):
    """The query of a search for users."""

    random: bool = Field(False, description="random users instead")


class ViewQuery(Request):
    """The query of a view of a user."""

    k: int = Field(K, ge=1, description="items of each list")
    held_out: bool = Field(False, description="whether held-out items may be listed")


class HistoryView(Request):
    """A history of a new user."""

    history: list[Id]
    k: Whole = Field(K, ge=1)
    unknown_items: UnknownItems = "ignore"

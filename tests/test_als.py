"""Alternating least squares: the normal equations of one row at a time, in plain loops and float64, are the oracle."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from concf.baselines import als
from concf.baselines.als import ALS, Basis, Pairs, UserSolver

CPU = torch.device("cpu")
UNOBSERVED, PENALTY = 0.07, 0.03
SHAPES = {  # users, items, factors
    "rows shorter and longer than the factors": (23, 17, 5),
    "one factor": (14, 11, 1),
    "more factors than items": (19, 6, 9),
    "more factors than users": (4, 15, 8),
}
every_shape = pytest.mark.parametrize("shape", list(SHAPES.values()), ids=list(SHAPES))


def some_pairs(n_users, n_items, seed=0, dtype=torch.float64):
    """Random pairs with weights and targets; the last user and the last item have none, the first user has most."""
    random = np.random.default_rng(seed)
    dense = random.random((n_users, n_items)) < 0.3
    dense[0] = True
    dense[-1], dense[:, -1] = False, False
    user, item = map(torch.from_numpy, dense.nonzero())
    weight, target = random.uniform(0.2, 3, len(user)), random.normal(0.5, 1, len(user))
    return Pairs(user, item, torch.tensor(weight, dtype=dtype), torch.tensor(target, dtype=dtype))


def some_items(n_items, factors, seed=1):
    """[items, d]"""
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 0.5, (n_items, factors)))


def literal_rows(n, row, column, pairs, fixed, penalty):
    """[n, d] the solution of every row's normal equations, one row and one pair after the other."""
    solved = np.zeros((n, fixed.shape[1]))
    for r in range(n):
        mine = [k for k in range(len(row)) if row[k] == r]
        weights = sum(float(pairs.weight[k]) for k in mine)
        gram = penalty * (weights + UNOBSERVED * len(fixed)) * np.eye(fixed.shape[1])
        right = np.zeros(fixed.shape[1])
        for y in fixed:
            gram += UNOBSERVED * np.outer(y, y)
        for k in mine:
            y = fixed[int(column[k])]
            gram += float(pairs.weight[k]) * np.outer(y, y)
            right += float(pairs.weight[k]) * float(pairs.target[k]) * y
        solved[r] = np.linalg.solve(gram, right)
    return solved


def literal_steps(n, row, column, pairs, fixed, x, steps):
    """[n, d] every row after steps of conjugate gradients from x, preconditioned by the part that all rows share."""
    solved = np.array(x)
    for r in range(n):
        mine = [k for k in range(len(row)) if row[k] == r]
        y = fixed[[int(column[k]) for k in mine]]
        weight, target = (np.array([float(part[k]) for k in mine]) for part in (pairs.weight, pairs.target))
        shared = UNOBSERVED * fixed.T @ fixed + PENALTY * (weight.sum() + UNOBSERVED * len(fixed)) * np.eye(len(x[0]))
        gram = shared + (y.T * weight) @ y
        residual = y.T @ (weight * target) - gram @ solved[r]
        direction = np.linalg.solve(shared, residual)
        for _ in range(steps):
            before = residual @ np.linalg.solve(shared, residual)
            length = before / (direction @ gram @ direction)
            solved[r] += length * direction
            residual -= length * gram @ direction
            downhill = np.linalg.solve(shared, residual)
            direction = downhill + (residual @ downhill) / before * direction
    return solved


def literal_fit(pairs, shape, item, sweeps):
    """([users, d], [items, d]) users by items, then items by users, so many times."""
    for _ in range(sweeps):
        user = literal_rows(shape[0], pairs.user, pairs.item, pairs, item, PENALTY)
        item = literal_rows(shape[1], pairs.item, pairs.user, pairs, user, PENALTY)
    return user, item


def literal_loss(pairs, shape, user, item):
    """L, over all pairs of a user and an item."""
    given = {(int(u), int(i)): (float(w), float(t)) for u, i, w, t in zip(*pairs, strict=True)}
    loss = 0.0
    weight_of_user, weight_of_item = np.zeros(shape[0]), np.zeros(shape[1])
    for u in range(shape[0]):
        for i in range(shape[1]):
            score = sum(float(x) * float(y) for x, y in zip(user[u], item[i], strict=True))
            weight, target = given.get((u, i), (0.0, 0.0))
            loss += weight * (target - score) ** 2 + UNOBSERVED * score**2
            weight_of_user[u] += weight
            weight_of_item[i] += weight
    for side, weights, others in ((user, weight_of_user, shape[1]), (item, weight_of_item, shape[0])):
        for row, weight in zip(side, weights, strict=True):
            loss += PENALTY * (weight + UNOBSERVED * others) * sum(float(x) ** 2 for x in row)
    return loss


@every_shape
def test_a_fit_alternates_between_the_sides_and_solves_every_row_s_normal_equations(shape):
    (users, items, factors), sweeps = shape, 2
    pairs, item = some_pairs(users, items), some_items(items, factors)
    user, fitted = ALS(pairs, (users, items), factors).fit(item, UNOBSERVED, PENALTY, sweeps)
    expected = literal_fit(pairs, (users, items), item.numpy(), sweeps)
    np.testing.assert_allclose((user @ fitted.T).numpy(), expected[0] @ expected[1].T, rtol=1e-7, atol=1e-9)
    assert not user[-1].any()  # without pairs the best vector is 0


def test_long_rows_take_steps_of_conjugate_gradients(monkeypatch):
    monkeypatch.setattr(als, "SHORT", 0)
    monkeypatch.setattr(als, "STEPS", 2)
    (users, items, factors), sweeps = (23, 17, 5), 2
    pairs, item = some_pairs(users, items), some_items(items, factors)
    pairs = Pairs(*(part[(pairs.user < users - 1)] for part in pairs))
    user, fitted = ALS(pairs, (users, items), factors).fit(item, UNOBSERVED, PENALTY, sweeps)
    x, y = np.zeros((users, factors)), item.numpy()
    for _ in range(sweeps):
        x[:-1] = literal_steps(users - 1, pairs.user, pairs.item, pairs, y, x[:-1], 2)
        y[:-1] = literal_steps(items - 1, pairs.item, pairs.user, pairs, x, y[:-1], 2)
        y[-1] = 0  # nobody has the last item
    np.testing.assert_allclose((user @ fitted.T).numpy(), x @ y.T, rtol=1e-7, atol=1e-9)


@every_shape
def test_many_steps_solve_every_row_s_normal_equations(shape, monkeypatch):
    monkeypatch.setattr(als, "SHORT", 2)
    monkeypatch.setattr(als, "STEPS", 100)  # nothing is left to improve long before
    (users, items, factors), sweeps = shape, 2
    pairs, item = some_pairs(users, items), some_items(items, factors)
    user, fitted = ALS(pairs, (users, items), factors).fit(item, UNOBSERVED, PENALTY, sweeps)
    expected = literal_fit(pairs, (users, items), item.numpy(), sweeps)
    np.testing.assert_allclose((user @ fitted.T).numpy(), expected[0] @ expected[1].T, rtol=1e-6, atol=1e-8)


@every_shape
def test_no_step_raises_the_loss(shape, monkeypatch):
    monkeypatch.setattr(als, "SHORT", 0)
    monkeypatch.setattr(als, "STEPS", 1)
    users, items, factors = shape
    pairs, item = some_pairs(users, items), some_items(items, factors)
    model = ALS(pairs, (users, items), factors)
    user, item = model.fit(item, UNOBSERVED, PENALTY, 1)
    losses = [literal_loss(pairs, (users, items), user, item)]
    for _ in range(5):
        user, item = model.fit_users((user, item), UNOBSERVED, PENALTY)
        losses.append(literal_loss(pairs, (users, items), user, item))
    assert all(after <= before * (1 + 1e-14) for before, after in pairwise(losses))


def test_new_users_are_solved_exactly_whatever_their_length(monkeypatch):
    monkeypatch.setattr(als, "SHORT", 0)
    users, items, factors = 23, 17, 5
    pairs, item = some_pairs(users, items), some_items(items, factors)
    user = UserSolver(item, UNOBSERVED, PENALTY)(pairs, users)
    expected = literal_rows(users, pairs.user, pairs.item, pairs, item.numpy(), PENALTY)
    np.testing.assert_allclose(user.numpy(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("short", [0, als.SHORT], ids=["long rows", "short rows"])
def test_neither_the_order_of_the_pairs_nor_threads_change_a_bit(short, monkeypatch):
    monkeypatch.setattr(als, "SHORT", short)
    pairs = some_pairs(23, 17, dtype=torch.float32)
    ones = pairs._replace(weight=torch.ones_like(pairs.weight))  # sums of weights are exact in any order
    order = torch.from_numpy(np.random.default_rng(3).permutation(len(pairs.user)))
    both = [ALS(each, (23, 17), 5) for each in (ones, Pairs(*(part[order] for part in ones)))]
    fits = [model.fit(model.start(4), UNOBSERVED, PENALTY, 3) for model in both]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    fits.append(both[0].fit(both[0].start(4), UNOBSERVED, PENALTY, 3))
    torch.set_num_threads(before)
    for one, *others in zip(*fits, strict=True):
        assert all(torch.equal(one, other) for other in others)


def test_small_blocks_give_the_same(monkeypatch):
    users, items, factors = 23, 17, 5
    pairs, item = some_pairs(users, items), some_items(items, factors)
    whole = ALS(pairs, (users, items), factors)
    monkeypatch.setattr(als, "CPU_CELLS", 20)
    cut = ALS(pairs, (users, items), factors)
    assert len(cut.users.blocks) > len(whole.users.blocks)
    one, other = (user @ fitted.T for user, fitted in (m.fit(item, UNOBSERVED, PENALTY, 3) for m in (whole, cut)))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_log_s_pairs_have_weight_and_target_one_and_more_can_be_added():
    train = csr_array(np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=np.float32))
    observed = Pairs.observed(train, CPU, torch.float64)
    assert [part.tolist() for part in observed] == [[0, 0, 2], [1, 2, 0], [1, 1, 1], [1, 1, 1]]
    half = torch.tensor([0.5], dtype=torch.float64)
    more = observed.and_more(Pairs(torch.tensor([1]), torch.tensor([2]), half, -half))
    assert [part.tolist() for part in more] == [[0, 0, 2, 1], [1, 2, 0, 2], [1, 1, 1, 0.5], [1, 1, 1, -0.5]]


def test_nobody_on_the_other_side_leaves_nothing_to_turn():
    basis = Basis.of(torch.zeros(0, 3))
    assert basis.rotated.tolist() == [[0.0] * 3]
    assert basis.values.tolist() == [0.0] * 3
    assert torch.equal(basis.vectors @ basis.vectors.T, torch.eye(3))

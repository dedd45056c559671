"""Gallery retrieval: ties, duplicates, chunks, and agreement with a plain loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_jax.metrics import retrieval

SEEDS = st.integers(0, 2**31 - 1)


def _random(seed, queries=17, gallery=23, dim=8):
    generator = np.random.default_rng(seed)
    return (
        generator.normal(size=(queries, dim)),
        generator.normal(size=(gallery, dim)),
        generator.integers(0, gallery, queries),
    )


def _plain(queries, gallery, targets):
    ranks = []
    for query, target in zip(queries, targets, strict=True):
        cosines = [
            query @ item / (np.linalg.norm(query) * np.linalg.norm(item)) for item in gallery
        ]
        ranks.append(sum(c >= cosines[target] for i, c in enumerate(cosines) if i != target))
    return ranks


def test_by_hand():
    gallery = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    queries = np.array([[2.0, 0.1], [0.1, 3.0], [1.0, 0.5]])
    found = retrieval.search(queries, gallery, np.array([0, 0, 2]), k=2)
    assert found.rank.tolist() == [0, 2, 0]
    assert found.nearest.tolist() == [[0, 2], [1, 2], [2, 0]]
    assert retrieval.recall_at(found.rank, 1).mean() == pytest.approx(2 / 3)
    assert retrieval.recall_at(found.rank, 5).mean() == 1.0
    assert found.similarity[2] == pytest.approx(1.5 / np.sqrt(1.25 * 2))


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_agrees_with_a_plain_loop(seed):
    queries, gallery, targets = _random(seed)
    found = retrieval.search(queries, gallery, targets)
    assert found.rank.tolist() == _plain(queries, gallery, targets)
    in_top = (found.nearest == targets[:, None]).any(axis=1)
    assert (in_top == (found.rank < 5)).all()


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_change_nothing(chunk):
    queries, gallery, targets = _random(5, queries=50, gallery=61)
    gallery[10:20] = gallery[0]  # ties that straddle chunks
    targets[:10] = 0
    whole = retrieval.search(queries, gallery, targets)
    parts = retrieval.search(queries, gallery, targets, chunk=chunk)
    assert (whole.rank == parts.rank).all()
    assert (whole.nearest == parts.nearest).all()


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 40))
def test_duplicates_of_the_target_all_stand_before_it(seed, copies):
    # Matrix products round equal columns differently by position: none may slip behind.
    _, gallery, _ = _random(seed, gallery=9, dim=192)
    generator = np.random.default_rng(seed)
    target = gallery[4]
    many = np.concatenate([gallery, np.repeat(target[None], copies, 0)])
    order = generator.permutation(len(many))
    where = int(np.flatnonzero(order == 4)[0])
    query = target + 1e-3 * generator.normal(size=192)
    found = retrieval.search(query[None], many[order], np.array([where]), k=3)
    assert found.rank[0] == copies
    # Copies scaled by a power of two have the same direction exactly.
    many[9:] *= 8.0
    assert retrieval.search(query[None], many[order], np.array([where])).rank[0] == copies


def test_a_collapsed_space_scores_nothing():
    found = retrieval.search(np.ones((4, 3)), np.ones((10, 3)), np.arange(4))
    assert found.rank.tolist() == [9] * 4
    assert retrieval.recall_at(found.rank, 5).sum() == 0.0
    blank = retrieval.search(np.zeros((1, 3)), np.eye(3), np.array([0]))
    assert blank.rank[0] == 2


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_scale_and_gallery_order_are_indifferent(seed):
    queries, gallery, targets = _random(seed)
    generator = np.random.default_rng(seed)
    base = retrieval.search(queries, gallery, targets)
    sizes = 10.0 ** generator.uniform(-150, 150, size=(len(gallery), 1))
    scaled = retrieval.search(queries * 1e-20, gallery * sizes, targets)
    assert (base.rank == scaled.rank).all()
    order = generator.permutation(len(gallery))
    moved = retrieval.search(queries, gallery[order], np.argsort(order)[targets])
    assert (base.rank == moved.rank).all()
    assert (order[moved.nearest] == base.nearest).all()


def test_perfect_and_worst():
    gallery = np.eye(6)
    assert retrieval.search(gallery, gallery, np.arange(6)).rank.sum() == 0
    assert (retrieval.search(-gallery, gallery, np.arange(6)).rank == 5).all()
    one = retrieval.search(np.ones((1, 2)), np.ones((1, 2)), np.array([0]))
    assert one.rank[0] == 0 and one.nearest.tolist() == [[0]]


@pytest.mark.parametrize(
    ("queries", "gallery", "targets", "message"),
    [
        (np.full((1, 2), np.nan), np.eye(2), [0], "queries: row 0 is not finite"),
        (np.eye(2), np.array([[1, 0], [0, np.inf]]), [0, 1], "gallery: row 1 is not finite"),
        (np.eye(2), np.empty((0, 2)), [0, 0], "empty"),
        (np.eye(2), np.eye(2), [0, 2], "outside"),
        (np.eye(2), np.eye(2), [0], "targets"),
        (np.eye(2), np.eye(3), [0, 1], "width"),
        (np.ones(2), np.eye(2), [0], "rows, D"),
    ],
)
def test_refusals(queries, gallery, targets, message):
    with pytest.raises(ValueError, match=message):
        retrieval.search(queries, gallery, np.array(targets))


def test_no_queries_is_an_empty_answer():
    found = retrieval.search(np.empty((0, 2)), np.eye(2), np.empty(0, int))
    assert found.rank.shape == (0,)

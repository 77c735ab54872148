"""The index of the prefix cache: contexts, collisions, chains."""

from quire.scheduler.state import memory as memory_module
from quire.scheduler.state.prefix import PrefixIndex


def test_a_salt_is_not_an_adapter():
    index = PrefixIndex(8, 4, "r")
    roots = [index.root(*names) for names in (("lion", ""), ("", "lion"), ("l", "ion"), ("", ""))]
    assert len({root.key for root in roots}) == 4
    others = [PrefixIndex(8, 4, "q").root("", ""), PrefixIndex(8, 8, "r").root("", "")]
    assert len({root.key for root in [*roots, *others]}) == 6


def test_a_hash_that_always_collides_costs_hits_but_never_mixes_prefixes(engine, monkeypatch):
    monkeypatch.setattr(memory_module.PrefixIndex.__init__, "__defaults__", (lambda data: b"same",))
    monkeypatch.setattr(memory_module.Memory.__init__, "__defaults__", (lambda data: b"same",))
    e = engine()
    prompts = [[1, 1, 1, 1, 5, 5, 5, 5, 9], [5, 5, 5, 5, 1, 1, 1, 1, 9], [1, 1, 1, 1, 1, 1, 1, 1, 9], [5, 5, 5, 5, 9]]
    for number, prompt in enumerate(prompts * 2):
        e.submit(number, prompt)
        plan = e.plan()
        # Only the first block ever published has the one key.
        shares = prompt[:4] == [1, 1, 1, 1] and number > 0
        assert plan.admits[0].num_computed == (4 if shares else 0)
        e.settle()
    assert len(e.core.group_epoch.memory.index) == 1


def test_equal_tokens_behind_different_prefixes_are_different_blocks():
    index = PrefixIndex(8, 1, "r", hash_=lambda data: b"same")
    root = index.root("", "")
    first = index.publish(root, b"aaaa", 0)
    assert index.find(root, b"aaaa") is first
    assert index.find(first, b"aaaa") is None
    assert index.find(index.root("", "salt"), b"aaaa") is None
    assert index.find(index.root("", ""), b"aaaa") is first


def test_a_chain_is_recognised_after_its_parent_was_evicted_and_computed_again():
    index = PrefixIndex(8, 1, "r")
    parent = index.publish(index.root("", ""), b"aaaa", 0)
    child = index.publish(parent, b"bbbb", 1)
    index.remove(0)
    again = index.publish(index.root("", ""), b"aaaa", 2)
    assert again is not parent
    assert index.find(again, b"bbbb") is child

"""The index of the prefix cache: contexts, collisions, chains, and identities that are not token ids."""

from quire.proto.messages.plans import NO_BLOCK
from quire.proto.prefix_key import Placeholders
from quire.scheduler.state import memory as memory_module
from quire.scheduler.state.prefix import PrefixIndex


def test_a_salt_is_not_an_adapter():
    index = PrefixIndex(8, (4,), "r")
    roots = [index.root(0, *names) for names in (("lion", ""), ("", "lion"), ("l", "ion"), ("", ""))]
    assert len({root.key for root in roots}) == 4
    others = [PrefixIndex(8, (4,), "q").root(0, "", ""), PrefixIndex(8, (8,), "r").root(0, "", "")]
    others.append(PrefixIndex(8, (4, 4), "r").root(1, "", ""))
    assert len({root.key for root in [*roots, *others]}) == 7


def test_a_hash_that_always_collides_costs_hits_but_never_mixes_prefixes(engine, monkeypatch):
    monkeypatch.setattr(memory_module.PrefixIndex.__init__, "__defaults__", (lambda parent, content: b"same",))
    monkeypatch.setattr(memory_module.Memory.__init__, "__defaults__", (lambda parent, content: b"same",))
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


def test_a_hash_that_always_collides_never_shows_a_prompt_anothers_image(engine, monkeypatch):
    monkeypatch.setattr(memory_module.PrefixIndex.__init__, "__defaults__", (lambda parent, content: b"same",))
    monkeypatch.setattr(memory_module.Memory.__init__, "__defaults__", (lambda parent, content: b"same",))
    e = engine()
    for number, digest in enumerate((b"c", b"d", b"c", b"d")):
        assert run_with(e, number, [7] * 9, (0, 8, digest * 32)) == (1 if number == 2 else 0)


def test_equal_tokens_behind_different_prefixes_are_different_blocks():
    index = PrefixIndex(8, (1,), "r", key_of=lambda parent, content: b"same")
    root = index.root(0, "", "")
    [first] = index.publish(root, [b"aaaa"], [0])
    assert index.find(root, b"aaaa") is first
    assert index.find(first, b"aaaa").block == NO_BLOCK
    assert index.find(index.root(0, "", "salt"), b"aaaa").block == NO_BLOCK
    assert index.find(index.root(0, "", ""), b"aaaa") is first


def test_a_chain_is_recognised_after_its_parent_was_evicted_and_computed_again():
    index = PrefixIndex(8, (1,), "r")
    [parent] = index.publish(index.root(0, "", ""), [b"aaaa"], [0])
    [child] = index.publish(parent, [b"bbbb"], [1])
    index.remove([0])
    [again] = index.publish(index.root(0, "", ""), [b"aaaa"], [2])
    assert again is not parent
    assert index.find(again, b"bbbb") is child


def run_with(engine, number, prompt, *placeholders):
    """A double of an image's request: blocks that it read from the cache."""
    engine.submit(number, prompt)
    request = engine.core.live_requests.registry.find(b"f", number)
    request.placeholders = tuple(Placeholders(*one) for one in placeholders)
    computed = engine.plan().admits[0].num_computed
    engine.settle()
    return computed // 4


def test_tokens_that_stand_for_something_else_share_blocks_only_where_they_stand_for_the_same(engine):
    e = engine()
    prompt = [1, 2, 3, 4, 5, 9, 9, 9, 9, 9, 6, 7, 8]
    assert run_with(e, 1, prompt, (5, 10, b"cat")) == 0
    assert run_with(e, 2, prompt, (5, 10, b"cat")) == 3
    assert run_with(e, 3, prompt, (5, 10, b"dog")) == 1, "the block before the image is anybody's"
    assert run_with(e, 4, prompt) == 1, "token ids alone are another prefix"
    assert run_with(e, 5, prompt, (5, 10, b"dog")) == 3
    assert run_with(e, 6, prompt, (5, 7, b"cat"), (7, 10, b"cat")) == 1
    assert run_with(e, 7, prompt[:9], (5, 9, b"cat")) == 1, "a smaller image of the same identity"


def test_generated_blocks_behind_an_image_are_found_by_who_sends_it_again(engine):
    e = engine()
    prompt = [1, 9, 9, 9, 9, 2]
    assert run_with(e, 1, prompt, (1, 5, b"cat")) == 0
    longer = [*prompt, *e.tokens[1, 0], 5]
    assert run_with(e, 2, longer, (1, 5, b"dog")) == 0
    assert run_with(e, 3, longer, (1, 5, b"cat")) == 2

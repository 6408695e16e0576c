"""Every method in the catalogue is held to what it declares."""

import pytest
import torch

import findtta
from nets import images, stream, tiny

CATALOGUE = findtta.methods()


def declared(**wanted):
    names = [
        n for n, info in CATALOGUE.items() if all(getattr(info, key) == value for key, value in wanted.items())
    ]
    return pytest.mark.parametrize("method", names)


def first_outputs(method, batch):
    return findtta.adapt(tiny(), method)(batch)


@declared(batch_dependent=False)
def test_a_prediction_does_not_depend_on_the_batch(method):
    batch = images()
    alone = torch.cat([first_outputs(method, sample[None]) for sample in batch])
    assert torch.allclose(first_outputs(method, batch), alone, atol=1e-5)


@declared(batch_dependent=True)
def test_a_prediction_depends_on_the_batch(method):
    batch = images()
    assert not torch.allclose(first_outputs(method, batch)[:1], first_outputs(method, batch[:1]), atol=1e-3)


@declared(stateful=False)
def test_batches_before_do_not_matter(method):
    adapted, batches = findtta.adapt(tiny(), method), stream(3)
    first = adapted(batches[0])
    adapted(batches[1]), adapted(batches[2])
    assert torch.equal(adapted(batches[0]), first)


@declared(stateful=True)
def test_state_is_saved_and_reset_forgets_it(method):
    adapted, batches = findtta.adapt(tiny(), method), stream(9)
    before = [adapted(batch) for batch in batches]
    saved = adapted.state_dict()
    adapted.reset()
    assert all(torch.equal(adapted(batch), output) for batch, output in zip(batches, before, strict=True))
    fresh = findtta.adapt(tiny(), method)
    fresh.load_state_dict(saved)
    assert torch.equal(fresh(batches[0]), adapted(batches[0]))


@declared(stateful=True)
def test_a_method_that_settles_is_fixed_after_its_warm_up_and_another_never(method):
    adapted, batches = findtta.adapt(tiny(), method), stream(12)
    kind = type(adapted)
    warm_up = kind.warm_up_batches(adapted.options)
    assert adapted.warm_up_left == warm_up
    assert (warm_up > 0) == (kind.warm_up_option is not None)
    for seen, batch in enumerate(batches):
        adapted(batch)
        assert adapted.warm_up_left == max(0, warm_up - seen - 1)
    state = str(adapted.state_dict())
    adapted(batches[0])
    assert (str(adapted.state_dict()) == state) == kind.settles
    adapted.reset()
    assert adapted.warm_up_left == warm_up


@declared(stateful=False)
def test_a_method_without_state_is_ready_at_once(method):
    adapted = findtta.adapt(tiny(), method)
    assert adapted.warm_up_left == type(adapted).warm_up_batches(adapted.options) == 0
    assert not type(adapted).settles
    assert adapted.collapse is None


@declared(needs_grad=False)
def test_no_gradient_is_computed(method, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("a backward pass was run")

    monkeypatch.setattr(torch.autograd, "backward", refuse)
    adapted = findtta.adapt(tiny(), method)
    outputs = [adapted(batch) for batch in stream(2)]
    assert not any(output.requires_grad for output in outputs)
    assert adapted.cost.backward == 0
    with torch.inference_mode():
        assert torch.equal(first_outputs(method, stream(1)[0]), outputs[0])


@declared()
def test_every_method_says_what_it_is(method):
    info = CATALOGUE[method]
    assert info.name == method
    assert all([info.summary, info.citation, info.weakness])
    assert all(meaning for _, meaning in info.options.values())
    assert info.cost.forward >= 1

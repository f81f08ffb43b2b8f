import torch

from neuralsde.core.memo import Memo


def test_a_value_is_made_anew_when_its_tensors_change():
    memo, made = Memo(), []
    a, b = torch.ones(2), torch.ones(3)

    def make():
        made.append(1)
        return float(a.sum() + b.sum())

    assert memo.get([a, b], make) == memo.get([a, b], make) == 5 and len(made) == 1
    b.mul_(2)
    assert memo.get([a, b], make) == 8 and len(made) == 2
    a = torch.zeros(2)  # another tensor in its place
    assert memo.get([a, b], make) == 6 and len(made) == 3
    memo.get([a, b], make, "other settings")
    assert len(made) == 4
    memo.get([a, b], make, "other settings")
    assert len(made) == 4


def test_what_is_made_in_inference_mode_is_not_trained_through():
    memo, weight = Memo(), torch.ones(2, requires_grad=True)
    scale = torch.full((2,), 3.0)
    with torch.inference_mode():
        memo.get([scale], lambda: scale + 0)
    (weight * memo.get([scale], lambda: scale + 0)).sum().backward()
    assert weight.grad.tolist() == [3, 3]

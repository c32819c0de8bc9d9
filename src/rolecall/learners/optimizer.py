"""Makes AdamW and steps it at the scheduled learning rate.

Weights that compute in bfloat16 have masters: float32 copies that gradients are summed in and that
steps move. In bfloat16 alone a step of 1e-6 is less than half the distance to the next number, so
most weights would never move.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from rolecall.config.optimizer import Optimizer
from rolecall.core.json_types import State


def adamw(
    config: Optimizer, parameters: Iterable[torch.nn.Parameter], *, undecayed: set[int]
) -> torch.optim.AdamW:
    """Return AdamW. `undecayed`: ids of matrices without weight decay."""
    assert config.lr is not None, "the config fills in the default learning rate"
    groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
    for parameter in parameters:
        groups[parameter.ndim > 1 and id(parameter) not in undecayed].append(parameter)
    decays = {True: config.weight_decay, False: 0.0}
    return torch.optim.AdamW(
        [
            {"params": members, "weight_decay": decays[d]}
            for d, members in groups.items()
            if members
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,  # 2.7 times as fast on a CPU, for 42 million weights
    )


class Stepper:
    """An optimizer, its schedule, and what it has done so far."""

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        config: Optimizer,
        *,
        total: int,
        module: torch.nn.Module | None = None,
    ) -> None:
        """Set up the optimizer; `module`: the parameters' module, if it may have embeddings."""
        self.parameters, self.config, self.total = parameters, config, total
        self.masters = [_master(parameter) for parameter in parameters]
        embeddings = {id(weight) for weight in _embeddings(module)}
        undecayed = {
            id(m) for p, m in zip(parameters, self.masters, strict=True) if id(p) in embeddings
        }
        self.optimizer = adamw(config, self.masters, undecayed=undecayed)
        self._options = [{**group, "params": []} for group in self.optimizer.param_groups]
        self.num_steps = 0
        self.grad_norm = 0.0  # of the last step, before clipping
        self.lr = config.lr_at(0, total=total)

    def step(self, count: float) -> bool:
        """Divide the summed gradients by `count`, clip, step. False: they were not finite."""

        if not self.measure(count):
            self.forget()
            return False
        self.apply()
        return True

    def measure(self, count: float) -> bool:
        """Divide the summed gradients by `count` and take their norm. False: it is not finite."""
        gradient = self._gradient()
        torch._foreach_mul_(gradient, 1.0 / count)
        self.grad_norm = total_norm(gradient)
        self.lr = self.config.lr_at(self.num_steps, total=self.total)
        return math.isfinite(self.grad_norm)

    def summed_norm(self) -> float:
        """Return the norm of the gradients as they have been summed."""
        return total_norm(self._gradient())

    def apply(self) -> None:
        """After `measure`: clip and step."""
        if self.grad_norm > self.config.clip:
            torch._foreach_mul_(self._gradient(), self.config.clip / self.grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        self.optimizer.step()
        self.num_steps += 1
        self.forget()
        for parameter, master in self._cast():
            parameter.detach().copy_(master.detach())  # rounds to the nearest number

    def forget(self) -> None:
        """Leave no gradient anywhere."""
        self.optimizer.zero_grad(set_to_none=True)
        for parameter in self.parameters:
            parameter.grad = None

    def move_state(self, device: torch.device) -> None:
        """Take moments and masters to a device; gradients are not there between two steps."""
        for _, master in self._cast():  # the optimizer and the hooks know this very object
            moved = torch.nn.Parameter(master.detach().to(device))
            torch.utils.swap_tensors(master, moved)
        for state in self.optimizer.state.values():
            state |= {
                name: value.to(device) if torch.is_tensor(value) and value.ndim else value
                for name, value in state.items()
            }

    def state_dict(self) -> State:
        """Return the moments, and the master weights, of which a saved model has only the rounded
        ones.
        """
        masters = [master.detach() for _, master in self._cast()]
        optimizer = self.optimizer.state_dict()
        return {"optimizer": optimizer, "num_steps": self.num_steps, "masters": masters}

    def load_state_dict(self, state: State) -> None:
        """Take over moments and counts; weight decay, betas and eps are those of this run."""
        self.optimizer.load_state_dict(state["optimizer"])
        self._take_options()
        self.num_steps = state["num_steps"]
        for (_, master), saved in zip(self._cast(), state["masters"], strict=True):
            master.detach().copy_(saved)

    def begin(self, *, moments: bool) -> None:
        """Count steps from 0, with the options of this run; without `moments` forget those."""
        self.num_steps = 0
        self._take_options()
        if not moments:
            self.optimizer.state.clear()

    def _take_options(self) -> None:
        for group, own in zip(self.optimizer.param_groups, self._options, strict=True):
            group.update({**own, "params": group["params"]})

    def _gradient(self) -> list[torch.Tensor]:
        return [master.grad for master in self.masters if master.grad is not None]

    def _cast(self) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
        """Return the parameters that have a master, each with it."""
        pairs = zip(self.parameters, self.masters, strict=True)
        return [(parameter, master) for parameter, master in pairs if master is not parameter]


def total_norm(gradient: list[torch.Tensor]) -> float:
    """Return the norm of all these together; of sharded tensors over all ranks."""
    norm = torch.nn.utils.get_total_norm(gradient)
    whole = getattr(norm, "full_tensor", None)  # float() of a sharded one is this rank's part
    return float(norm if whole is None else whole())


def _embeddings(module: torch.nn.Module | None) -> list[torch.Tensor]:

    modules = [] if module is None else module.modules()
    return [layer.weight for layer in modules if isinstance(layer, torch.nn.Embedding)]


def _master(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Return a float32 parameter itself, else a float32 copy, which takes over each gradient."""

    if parameter.dtype == torch.float32:
        return parameter
    master = torch.nn.Parameter(parameter.detach().float())

    def take(computed: torch.Tensor) -> None:
        assert computed.grad is not None
        if master.grad is None:
            master.grad = computed.grad.float()
        else:
            master.grad.add_(computed.grad)
        computed.grad = None

    parameter.register_post_accumulate_grad_hook(take)
    return master

"""A new learner on one page: plain SGD, one micro-batch after another, without clipping.

learner: {name: examples/plain_learner.py:PlainLearner, options: {momentum: 0.9}}
"""

from pathlib import Path

import numpy as np
import torch

from rolecall.core.interfaces.algorithm import Objective, Outputs
from rolecall.core.interfaces.learner import Annotation, Learner, Update
from rolecall.core.types import Batch, Floats, Ids, Turn
from rolecall.learners.inputs import LearnerInputs
from rolecall.learners.packing import pack
from rolecall.models.attention.layouts import Rows, make_layout


class PlainLearner(Learner):
    exact = True
    version = num_steps = 0

    def __init__(self, inputs: LearnerInputs, *, momentum: float = 0.0) -> None:
        if inputs.reference is not None or inputs.head is not None:
            raise ValueError("this learner has neither a reference nor a value head")
        self.model = inputs.model
        parameters = [parameter for _, parameter in inputs.model.named_parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=inputs.optimizer.lr, momentum=momentum)

    def forward(self, batch: Batch, *, entropy: bool = False) -> Outputs:
        tokens = torch.from_numpy(batch.tokens).long()
        target = torch.from_numpy(np.flatnonzero(batch.mask))
        layout = make_layout(batch.parent, batch.positions, device=tokens.device)
        keep = torch.from_numpy(batch.parent).long()[target]
        positions = torch.from_numpy(batch.positions).long()
        logits = self.model.logits(tokens, positions, layout=layout, keep=keep)
        logits = logits / torch.from_numpy(batch.temperature)[target, None]
        every = logits.log_softmax(-1)
        whole = torch.zeros(len(tokens)).index_put(
            (target,), every.gather(-1, tokens[target, None])[:, 0]
        )
        found = Outputs(whole)
        if entropy:
            own = -(every.exp() * every).sum(-1)
            found.entropies = torch.zeros(len(tokens)).index_put((target,), own)
        return found

    async def update(
        self, steps: list[list[Batch]], algorithm: Objective, *, per_agent: bool
    ) -> list[Update]:
        return [self._step(batches, algorithm) for batches in steps]

    def _step(self, batches: list[Batch], algorithm: Objective) -> Update:
        self.optimizer.zero_grad()
        count = 0.0
        for batch in batches:
            outputs = self.forward(batch, entropy=algorithm.entropy > 0)
            for part in batch.parts or [batch]:
                loss = algorithm.loss(part, outputs)
                loss.total.backward(retain_graph=True)
                count += loss.count
        parameters = self.optimizer.param_groups[0]["params"]
        gradients = [p.grad.div_(max(count, 1.0)) for p in parameters if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        self.optimizer.step()
        self.version, self.num_steps = self.version + 1, self.num_steps + 1
        return Update(grad_norm=norm, lr=self.optimizer.param_groups[0]["lr"])

    async def annotate(
        self, turns: list[Turn], what: set[Annotation], *, budget: int
    ) -> dict[str, dict[Annotation, Floats]]:
        noted: dict[str, dict[Annotation, Floats]] = {turn.id: {} for turn in turns}
        for turn in turns:
            for batch in pack([turn], budget=budget):
                with torch.no_grad():
                    logprobs = self.forward(batch).logprobs.numpy()[batch.mask > 0]
                noted[turn.id] |= dict.fromkeys(what, logprobs)
        return noted

    async def probe(self, tokens: Ids) -> Floats:
        ids = torch.from_numpy(tokens).long()
        layout = Rows([len(ids)], device=ids.device)
        with torch.no_grad():
            keep = torch.arange(len(ids) - 1)
            logits = self.model.logits(ids, layout.position, layout=layout, keep=keep)
        return logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0].numpy()

    def save(self, folder: Path) -> None:
        self.model.save(folder)
        torch.save(
            {"sgd": self.optimizer.state_dict(), "version": self.version, "steps": self.num_steps},
            folder / "learner.pt",
        )

    def load(self, folder: Path) -> None:
        self.model.load(folder)
        state = torch.load(folder / "learner.pt", weights_only=True)
        self.optimizer.load_state_dict(state["sgd"])
        self.version, self.num_steps = state["version"], state["steps"]

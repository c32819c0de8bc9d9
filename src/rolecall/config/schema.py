"""The keys of a config, their types and defaults; `docs/config.md` is generated from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from rolecall.config.cluster import ClusterConfig, LocalClusterConfig
from rolecall.config.data_set_export import CollectConfig
from rolecall.config.engines import (
    EngineConfig,
    LocalEngineConfig,
    automatic,
)
from rolecall.config.evaluation import EvaluationConfig
from rolecall.config.key_locations import KeyLocations
from rolecall.config.learners import LearnerConfig, LocalLearnerConfig
from rolecall.config.optimizer import Optimizer
from rolecall.config.prices import PriceConfig
from rolecall.config.references import References
from rolecall.config.section import Section
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.interfaces.tool import Format
from rolecall.core.json_types import JsonObject, JsonValue, Options
from rolecall.core.prompt_truncation import PromptTruncation

MOST_STEPS = 1_000_000_000
WRITTEN = "environment"  # rollout.data of demonstrations that the environment writes
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
Weight = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class Named(Section):
    """Something with a name and its own options."""

    model_config = ConfigDict(extra="allow")

    name: str
    """A built-in name, `package.module:name` or `path/to/file.py:name`."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: JsonValue) -> JsonValue:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> Options:
        return dict(self.model_extra or {})


DEFAULT_TOOLS = ("calculator", "python")  # what nothing outside of the sandbox can be changed with


class ToolsConfig(Section):
    """The tools that an agent may call; a list of tools stands for `{use: [...]}`, a word for one
    tool, and `default` for `calculator` and `python`."""

    use: list[Named] = Field(min_length=1)
    """Tools by name, each with its options; `world` stands for those that the environment has, and
    `default` for `calculator` and `python`, which change nothing outside of the sandbox."""
    format: Format = "native"
    """How calls are written: `native` (the model's own chat template), `tags`
    (<tool_call>{...}</tool_call>) or `code` (a fenced python block)."""
    max_calls: int = Field(8, ge=1, le=10_000)
    """Most answers with tool calls per question; after that the agent is not asked again."""
    calls_per_turn: int = Field(16, ge=1, le=10_000)
    """Most calls in one answer. Further calls are not made, and the agent is told so."""
    timeout_s: float = Field(30.0, gt=0, le=1e7)
    """Time limit of a call in seconds; `python` and `search` have limits of their own instead."""
    result_chars: int = Field(4_000, ge=100, le=100_000_000)
    """Most characters of a result; the middle of a longer one is cut out."""
    chars_per_turn: int = Field(16_000, ge=100, le=100_000_000)
    """Most characters of all results of one answer together; long results are cut alike."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: JsonValue) -> JsonValue:
        section = value if isinstance(value, dict) else {"use": value}
        use = section.get("use")
        words = [use] if isinstance(use, str) else use
        if not isinstance(words, list):
            return section
        sets = [DEFAULT_TOOLS if word == "default" else (word,) for word in words]
        return {**section, "use": [tool for tools in sets for tool in tools]}


class CrossPolicyConfig(Section):
    """Sample some of an agent's turns with earlier weights of its policy (AgentRL, 2510.04206)."""

    policy: str
    """Name of a policy whose `opponent_pool` holds earlier weights of the agent's own policy."""
    share: float = Field(0.25, gt=0, lt=1)
    """Share of its turns that they sample. Evaluations do not use them."""


class AgentConfig(Section):
    """One member of the team."""

    policy: str
    """Name of the policy it speaks with; agents that name one policy share an LLM."""
    role: str | None = None
    """The workflow's role it plays; by default its own name."""
    system: str = ""
    """System prompt."""
    sampling: Sampling = Sampling()
    """Sampling parameters of its turns."""
    truncation: PromptTruncation | None = None
    """Cut prompts that are too long; by default a prompt that leaves no room for an answer ends its
    episode."""
    parser: str | None = None
    """Import path of a function that reads its turns; by default the workflow's for the role."""
    invalid_penalty: float = Field(0.0, ge=0, le=1e6)
    """Amount subtracted from the reward of a turn that the parser cannot read."""
    require_think_tags: bool = False
    """Count a turn as invalid unless it has one thought, between `<think>` and `</think>`."""
    memory: bool = False
    """Show it its earlier exchanges of the episode in each new call."""
    trainable: bool = True
    """Train on its turns; False: it speaks, and is never trained."""
    algorithm: Named | None = None
    """Algorithm that gives this agent its credit; by default the team's."""
    cross_policy: CrossPolicyConfig | None = None
    """Sample some of its turns with earlier weights of its policy. These turns are trained too,
    with the log-probs of the weights that sampled them."""
    tools: ToolsConfig | None = None
    """Tools that it may call. It is asked again with the results until it calls none."""


class Adapter(Section):
    """A LoRA adapter (PEFT): small trained matrices beside frozen base weights."""

    rank: int = Field(32, ge=1, le=65_536)
    """Inner size of the two matrices."""
    alpha: float | None = Field(None, gt=0, le=1e6)
    """The adapter's output is multiplied by alpha / rank; by default twice the rank."""
    targets: str | list[str] = "all-linear"
    """Names of the modules that get an adapter."""

    @model_validator(mode="after")
    def _scale_by_rank(self) -> Adapter:
        """So that an adapter of another rank learns at the same scale."""
        if self.alpha is None:
            self.alpha = 2.0 * self.rank
        return self


class OpponentPoolConfig(Section):
    """Play with the weights that a trained policy had at earlier steps."""

    of: str
    """A trained policy of the same base."""
    every: int = Field(5, ge=1, le=1_000_000_000)
    """Steps between the weights that are kept."""
    keep: int = Field(8, ge=2, le=10_000)
    """Most sets of weights to keep: the initial ones and the newest."""


class ReplyConfig(Section):
    """The sampling of replies as a coach, a judge or a simulated user."""

    temperature: float | None = Field(None, ge=0, le=100)
    """Sampling temperature; by default 1 for a policy with a base, else the server's default."""
    max_tokens: int = Field(4096, ge=1, le=10_000_000)
    """Most tokens of a reply, reasoning included."""


class PolicyConfig(Section):
    """One set of weights, which one or more agents speak with."""

    base: str = ""
    """Model folder, name on the Hugging Face hub, or `tiny:NAME` for a model inside the package.
    The engines `openai`, `anthropic` and `google` take messages and need none."""
    replies: ReplyConfig | None = None
    """Sampling parameters of its replies as a coach, a judge or a simulated user. Agents have
    `sampling` instead."""
    adapter: Adapter | None = None
    """Train a LoRA adapter beside the frozen base instead of all weights."""
    quantization: Literal["none", "8bit", "4bit"] = "none"
    """Store the linear layers of a frozen base in 8 or 4 bits (bitsandbytes, as in QLoRA). The
    policy must be untrained or train an adapter. Needs `pip install 'rolecall[quantize]'`."""
    optimizer: Optimizer | None = None
    """Optimizer of the weights."""
    reference: str | None = None
    """Frozen weights that the KL and DPO compare with: another base, or `initial`, the policy's own
    weights when the run begins. With an adapter `initial` is its base, unless an earlier stage
    has trained the adapter."""
    reference_update_every: int | None = Field(None, ge=1, le=1_000_000_000)
    """Steps between copies of the policy's weights to the reference (iterative DPO, SPIN); by
    default the reference never changes."""
    opponent_pool: OpponentPoolConfig | None = None
    """Play with earlier weights of another policy, drawn anew for each step, as an opponent for
    self-play. Evaluations use the initial weights."""
    chat_template: str | None = None
    """Chat template in place of the base's own: `plain` (messages as `role:` and text) for bases
    without one, such as gpt2, or the path of a Jinja file."""
    template: JsonObject = {}
    """Options for the chat template, e.g. {enable_thinking: false} for Qwen3."""
    device: str | None = None
    """Device of its weights, such as cpu, cuda, cuda:1 or mps; by default learner.device."""
    pool: str | None = None
    """Pool of the cluster whose GPUs its engines and ranks use; needed if there are several
    pools."""
    colocate: bool = False
    """Share the pool's GPUs with all other policies that set this. Engines and ranks take turns:
    engines sleep while weights are updated. False: its engines and ranks have GPUs of their own."""
    max_staleness: int | None = Field(None, ge=0, le=1000)
    """Most updates that its own turns may lag behind, if less than trainer.max_staleness. Older
    turns are not trained; other turns are still compared with them."""
    engine: EngineConfig | None = None
    """Keys of its engine that differ from the section `engine`."""
    learner: LearnerConfig | None = None
    """Keys of its learner that differ from the section `learner`."""


class CriticConfig(Section):
    """A critic, which predicts rewards."""

    base: str | None = None
    """Model that reads the conversation: the critic's own weights for `team` and `token`, frozen
    for `mixer` (QMIX only) and `discriminator`; `agent` is a head on each policy's own model and
    has none."""
    optimizer: Optimizer = Optimizer()
    """Optimizer of the critic; its lr is 1e-5 by default."""
    heads: int = Field(1, ge=1, le=64)
    """Value heads of each policy, for the critic `agent`. Head n values an agent's n-th turn in an
    episode, such as a round of a debate; the last head values all later turns."""


class CurriculumConfig(Section):
    """Sample tasks that the team sometimes passes more often than easy or hopeless ones."""

    by: Literal["task", "source", "family"] = "task"
    """Compute the pass rate p by task (finite train splits only), by source or by family. The
    weight of a task is p (1 - p) + floor."""
    prior: float = Field(0.5, ge=0, le=1)
    """Pass rate assumed of what has not been tried yet."""
    newest: float = Field(0.5, gt=0, le=1)
    """Weight of a step's mean score in the running pass rate."""
    floor: float = Field(0.05, gt=0, le=1e6)
    """Amount added to every weight, so that each task keeps a chance."""


class GroupFilterConfig(Section):
    """Replace groups whose mean score says that their task is too hard or too easy."""

    above: float = Field(0.0, allow_inf_nan=False)
    """Keep groups whose mean score is above this."""
    below: float = Field(1.0, allow_inf_nan=False)
    """Keep groups whose mean score is below this."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.above >= self.below:
            raise ValueError(
                f"above ({self.above:g}) is not less than below ({self.below:g}), so that no group "
                "is kept; swap them"
            )
        return self


class RolloutConfig(Section):
    """The episodes that a step collects."""

    groups: int = Field(32, ge=1, le=1_000_000)
    """Tasks in a step."""
    group_size: int = Field(8, ge=1, le=100_000)
    """Attempts at each task, which are compared with one another. A row of `data` is one attempt or
    one pair."""
    stratify: bool | Literal["equal", "proportional"] = False
    """Divide each step's tasks among the sources of a finite train split: into equal shares (true
    or `equal`), or by their numbers of tasks (`proportional`)."""
    curriculum: CurriculumConfig | None = None
    """Draw tasks by how often the team passes them; `{}` turns this on with its defaults."""
    group_filter: GroupFilterConfig | None = None
    """Replace groups by the score of their attempts, whatever the algorithm; `{}` keeps those with
    both right and wrong attempts (dynamic sampling). A step looks at most ten times for new
    tasks."""
    data: str | None = None
    """File (JSON Lines or Parquet) to train on instead of episodes: demonstrations for sft,
    preferences for dpo. `environment` stands for demonstrations that the environment writes."""
    timeout_s: float = Field(600.0, gt=0, le=1e7)
    """Time limit of an episode in seconds."""
    deadline_s: float | None = Field(None, gt=0, le=1e7)
    """Most seconds that a step waits for its episodes. Unfinished episodes are cancelled and
    counted, and their groups are trained without them."""
    carry: int = Field(0, ge=0, le=1000)
    """Most later steps that an unfinished group is carried into instead of being cancelled
    (partial rollouts). It may be this much staler than trainer.max_staleness, which must be at
    least 1."""
    retries: int = Field(2, ge=0, le=1000)
    """Most repeats, with new seeds, of an episode that failed for a reason outside of its code."""
    concurrency: int = Field(256, ge=1, le=10_000_000)
    """Most episodes that are played at once."""
    max_tasks: int | None = Field(None, ge=1, le=1_000_000_000)
    """Train on this many tasks only, drawn from a finite train split by trainer.seed."""
    max_prompt_tokens: int | None = Field(None, ge=1, le=1_000_000_000)
    """Leave out the tasks, held-out ones too, whose prompt takes more tokens than this for every
    agent, with the agent's system prompt and chat template around it; one line counts them."""
    allow_filtered_sampling: bool = False
    """Train even though top_p, top_k or temperature 0 change the distribution that is sampled."""


class RewardConfig(Section):
    """A reward with its weight and its own options."""

    model_config = ConfigDict(extra="allow")

    weight: Weight = 1.0
    """Multiplier of the reward."""

    @property
    def options(self) -> Options:
        return dict(self.model_extra or {})


class WarmStartConfig(Section):
    """Supervised steps before the run, on demonstrations that the environment writes."""

    steps: int = Field(ge=0, le=1_000_000)
    """Steps of the stage `warm_start`; 0 turns it off."""
    rows: int = Field(32, ge=1, le=1_000_000)
    """Demonstrated turns in a step."""
    lr: float | None = Field(None, gt=0, le=1e3)
    """Learning rate; by default 2e-5, and 2e-4 for an adapter."""


class TrainerConfig(Section):
    """Length, seed, staleness and checkpoints of a run."""

    steps: int = Field(200, ge=1, le=MOST_STEPS)
    """Number of steps. A step collects episodes, gives credit and updates every policy."""
    epochs: float | None = Field(None, gt=0, le=1_000_000)
    """Length of the run as passes over the train tasks, or over the rows of rollout.data. The tasks
    left over at the end of an epoch that fill no step are not trained on. If `steps` is given, too,
    the run has at most that many."""
    seed: int = Field(0, ge=-(2**63), lt=2**63)
    """Seed from which every task, draw and shuffle derives."""
    max_staleness: int = Field(0, ge=0, le=1000)
    """Most updates that a rollout may lag behind. Above 0, later steps are collected while an
    update runs, and the engine needs weights of its own (engine.separate_weights)."""
    deterministic: bool | None = None
    """Make runs with the same seed equal bit for bit: the engine steps only while all episodes wait
    for it. True by default, unless max_staleness is above 0 or an agent's engine cannot promise it
    (vllm, sglang and the providers)."""
    save_every: int = Field(10, ge=1, le=1_000_000_000)
    """Steps between checkpoints; the last step is always saved."""
    keep: int = Field(2, ge=1, le=1_000_000_000)
    """Number of newest checkpoints to keep, beside the best."""
    pin: list[Annotated[int, Field(ge=1)]] = []
    """Steps whose checkpoints are saved and never removed: [10, 50]. To replay an episode of step N
    with the weights that sampled it, pin step N - 1."""
    warm_start: int | WarmStartConfig = 0
    """Steps of SFT on demonstrations that the environment writes, before the run's own steps. A
    number stands for `{steps: N}`. The run then has the stages `warm_start` and `train`. The
    environments code, math, search and tool_use write demonstrations."""
    critic_warmup: int = Field(0, ge=0, le=MOST_STEPS)
    """Steps at the beginning in which only critics learn and the policies stay. Needs a critic with
    weights of its own, such as `token` of ppo_critic."""
    idle_steps: int = Field(3, ge=1, le=1_000_000_000)
    """Stop the run after this many steps in a row with nothing to train on."""

    @model_validator(mode="after")
    def _do_not_limit_epochs(self) -> Self:
        if self.epochs is not None and "steps" not in self.model_fields_set:
            self.steps = MOST_STEPS
        return self


class MetricsConfig(Section):
    """Measurements that cost extra compute."""

    grad_norm_every: int | None = Field(None, ge=0, le=1_000_000_000)
    """Steps between exact gradient norms of each agent, where agents share a policy; by default 1;
    0 turns them off. A step that measures them holds one more gradient and computes prompts that
    agents share once for each of them."""

    def grad_norms_in(self, step: int) -> bool:
        """Return whether a step measures them."""
        every = 1 if self.grad_norm_every is None else self.grad_norm_every
        return every > 0 and step % every == 0


class StageConfig(Section):
    """A stage of a run: the keys below, and any others of the config that differ in it."""

    model_config = ConfigDict(extra="forbid", serialize_by_alias=True)

    name: Name
    """Name of the stage and of its folder in the run folder."""
    source: Name | None = Field(None, alias="from")
    """Earlier stage to read from. A stage that trains reads the data set that it collected; a stage
    that collects reads its episodes."""
    optimizer: Literal["fresh", "carried"] = "fresh"
    """Begin with new optimizer moments (fresh), or with those of the stage before (carried). The
    weights always carry over."""
    collect: CollectConfig | None = None
    """Play a step's tasks and write the selected turns as a data set instead of training; `{}`
    selects all."""
    evaluate: bool = False
    """Score the team on its held-out tasks instead of training."""

    @property
    def kind(self) -> Literal["train", "collect", "evaluate"]:
        if self.collect is not None:
            return "collect"
        return "evaluate" if self.evaluate else "train"


class Config(Section):
    """One run."""

    team: dict[Name, AgentConfig] = Field(min_length=1)
    """The agents by name."""
    policies: dict[Name, PolicyConfig] = Field(min_length=1)
    """The policies, each a set of weights, by name."""
    critics: dict[Name, CriticConfig] = {}
    """Critics that the algorithm needs, by the name it asks for: `agent`, a value head on each
    policy; `token`, a model of its own that values each token; `team`, a model that reads the whole
    conversation; `mixer`, utilities that VDN or QMIX adds up; `discriminator`, whose scores are
    MA-AIRL's rewards; or the critic of an algorithm of your own."""
    workflow: Named
    """Workflow that lets the agents talk."""
    environment: Named
    """Environment that holds the tasks."""
    rewards: dict[str, Weight | RewardConfig] = {"correct": 1.0}
    """Reward functions and their weights."""
    algorithm: Named
    """Algorithm that gives credit."""
    rollout: RolloutConfig = RolloutConfig()
    """The episodes that a step collects."""
    trainer: TrainerConfig = TrainerConfig()
    """Length, seed, staleness and checkpoints of the run."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluation on held-out tasks."""
    prices: dict[Name, PriceConfig] = {}
    """Prices of tokens by policy. With them evaluations report the cost of each agent, coaches the
    cost of a score, and engines can have budgets in dollars."""
    metrics: MetricsConfig = MetricsConfig()
    """Measurements that cost extra compute."""
    engine: EngineConfig = LocalEngineConfig()
    """Engine that samples the agents' turns."""
    learner: LearnerConfig = LocalLearnerConfig()
    """Learner that trains the policies."""
    cluster: ClusterConfig = LocalClusterConfig()
    """Machines that the run uses."""
    trackers: list[Named] = []
    """Trackers that metrics are also sent to: tensorboard, wandb, mlflow, trackio, weave."""
    output: str | None = None
    """Run folder; by default runs/<name of the recipe or file>."""
    stages: list[StageConfig] = Field([], exclude=True)
    """Stages that are run one after the other, each with the weights of the one before: a list of
    what differs in each. `stage=NAME` on a command line takes one, `stages.NAME.KEY=VALUE` is for
    one alone."""
    _locations: KeyLocations = PrivateAttr(default_factory=KeyLocations)  # where its keys stand
    _references: References = PrivateAttr(default_factory=dict)  # what it was written with

    @property
    def trained_policies(self) -> set[str]:
        """Names of the policies that a trainable agent speaks with."""
        return {agent.policy for agent in self.team.values() if agent.trainable}

    def get_engine(self, policy: str) -> EngineConfig:
        """Return the engine section of a policy."""
        return self.policies[policy].engine or self.engine

    def get_learner(self, policy: str) -> LearnerConfig:
        """Return the learner section of a policy."""
        return self.policies[policy].learner or self.learner

    def get_section_key(self, policy: str, section: Literal["engine", "learner"]) -> str:
        """Return the key of a policy's section: its own, or the config's."""
        own = getattr(self.policies[policy], section) is not None
        return f"policies.{policy}.{section}" if own else section

    def get_device(self, policy: str) -> str:
        """Return the device of a policy's weights, as the config names it."""
        return self.policies[policy].device or self.get_learner(policy).device

    def sampling_dtype(self, policy: str) -> str:
        """Return the dtype that a policy's engine computes in."""
        return self.get_engine(policy).dtype or self.get_learner(policy).dtype

    def is_ranked(self, policy: str) -> bool:
        """Return whether processes of their own train a policy."""
        return self.get_learner(policy).is_ranked

    def is_rounded(self, policy: str) -> bool:
        """Return whether sampler or learner compute in less than float32."""
        return {self.sampling_dtype(policy), self.get_learner(policy).dtype} != {"float32"}

    def weights_are_apart(self, policy: str) -> bool:
        """Return whether the engine samples a trained policy with weights apart from its
        learner's.
        """
        engine = self.get_engine(policy)
        return self.is_ranked(policy) or self.is_replicated(policy) or engine.separate_weights

    def is_replicated(self, policy: str) -> bool:
        """Return whether engines in processes of a cluster sample a policy."""
        return self.cluster.is_remote and self.get_engine(policy).runs_on_cluster

    def get_pool(self, policy: str) -> str | None:
        """Return the pool of a cluster that a policy uses, if it needs one that is there."""
        pools = self.cluster.pools
        is_ranked = policy in self.trained_policies and self.is_ranked(policy)
        if not (is_ranked or self.is_replicated(policy)):
            return None
        named = self.policies[policy].pool
        return named if named in pools or len(pools) != 1 else next(iter(pools))

    @property
    def deterministic(self) -> bool:
        if self.trainer.deterministic is not None:
            return self.trainer.deterministic
        waits = self.trainer.max_staleness == 0 and self.rollout.deadline_s is None
        return waits and self.is_exact

    @property
    def is_exact(self) -> bool:
        """Return whether every engine of an agent gives the same answer for the same seed, whatever
        else it samples.
        """
        agents = {agent.policy for agent in self.team.values()}
        return all(map(self.is_embedded, self.policies.keys() & agents))

    def is_embedded(self, policy: str) -> bool:
        """Return whether an engine samples a model of this process for a policy."""
        return self.get_engine(policy).is_embedded and not self.is_replicated(policy)

    def takes_text(self, policy: str) -> bool:
        """Return whether an engine takes messages and returns text, so that no turn of it has
        tokens.
        """
        return self.get_engine(policy).takes_text(self.policies[policy].base)

    def locate_problems(self, problems: Iterable[str]) -> ConfigError:
        """Return one error of all problems, each with the line of the file where its key stands."""
        return ConfigError(*map(self._locations.locate, problems))

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, given: JsonValue) -> JsonValue:
        """Complete each policy's `engine` and `learner` from the config's sections.

        A policy's sections hold what differs from the config's; a name is enough. Keys of the
        config's section hold for a policy too, unless it names another engine.
        """
        if not isinstance(given, Mapping):
            return given
        given = dict(given)
        for key in ("engine", "learner", "cluster"):
            if key in given:
                given[key] = _section(given[key])
        policies = given.get("policies")
        if isinstance(policies, Mapping):
            given["policies"] = {
                name: _inherited(policy, given) if isinstance(policy, Mapping) else policy
                for name, policy in policies.items()
            }
        return given

    @model_validator(mode="after")
    def _fill_in_optimizers(self) -> Config:
        """So that the stored config says what was used: lr 1e-6, 2e-5 for an adapter, 1e-5 for a
        critic. Weights that nobody trains have no optimizer and frozen agents no penalty, so
        freezing an agent takes one key.
        """
        for agent in self.team.values():
            if not agent.trainable:
                agent.invalid_penalty = 0.0
        for name in set(self.policies) - self.trained_policies:
            self.policies[name].optimizer = None
        for critic in self.critics.values():
            if critic.optimizer.lr is None:
                critic.optimizer = critic.optimizer.model_copy(update={"lr": 1e-5})
        for name in self.trained_policies & set(self.policies):
            policy = self.policies[name]
            optimizer = policy.optimizer or Optimizer()
            if optimizer.lr is None:
                lr = 2e-5 if policy.adapter else 1e-6
                optimizer = optimizer.model_copy(update={"lr": lr})
            policy.optimizer = optimizer
        return self


def _section(given: JsonValue) -> JsonValue:
    """Expand a name to its section: `vllm` to {name: vllm}, and `auto` to what it means here."""
    section = {"name": given} if isinstance(given, str) else given
    if isinstance(section, Mapping) and section.get("name") == "auto":
        return {**section, "name": automatic()}
    return section


def _inherited(policy: Mapping[str, Any], given: Mapping[str, Any]) -> JsonObject:
    """Return the policy with whole sections."""
    whole = dict(policy)
    for key in whole.keys() & {"engine", "learner"}:
        own, common = _section(whole[key]), given.get(key) or {}
        if isinstance(own, Mapping) and isinstance(common, Mapping):
            same = own.get("name", common.get("name")) == common.get("name")
            own = {**common, **own} if same else own
        whole[key] = own
    return whole

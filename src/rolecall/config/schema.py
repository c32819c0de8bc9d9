"""The keys of a config, their types and defaults; `docs/config.md` is generated from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

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


class ToolsConfig(Section):
    """The tools that an agent may call; a list of tools stands for `{use: [...]}`."""

    use: list[Named] = Field(min_length=1)
    """Tools by name, each with its options; `world` stands for those that the environment has."""
    format: Format = "native"
    """How calls are written: `native` (the model's own chat template), `tags`
    (<tool_call>{...}</tool_call>) or `code` (a fenced python block)."""
    max_calls: int = Field(8, ge=1, le=10_000)
    """Answers with calls to one question, after which the agent is not asked again."""
    calls_per_turn: int = Field(16, ge=1, le=10_000)
    """Calls that one answer may make; the agent is told that those beyond it were not made."""
    timeout_s: float = Field(30.0, gt=0, le=1e7)
    """Most seconds a call may take; `python` and `search` have limits of their own instead."""
    result_chars: int = Field(4_000, ge=100, le=100_000_000)
    """Longer results keep their head and their tail."""
    chars_per_turn: int = Field(16_000, ge=100, le=100_000_000)
    """Characters of all results of one answer together; long ones are cut alike."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: JsonValue) -> JsonValue:
        return {"use": value} if isinstance(value, list) else value


class CrossPolicyConfig(Section):
    """Turns of an agent that earlier weights of its policy sample (AgentRL, 2510.04206)."""

    policy: str
    """A policy whose `opponent_pool` holds earlier weights of the agent's own."""
    share: float = Field(0.25, gt=0, lt=1)
    """How often one of its turns is sampled by them; evaluations are played without."""


class AgentConfig(Section):
    """One member of the team."""

    policy: str
    """Name of the policy it speaks with; agents that name one policy share an LLM."""
    role: str | None = None
    """The workflow's role it plays; by default its own name."""
    system: str = ""
    """System prompt."""
    sampling: Sampling = Sampling()
    """How its tokens are sampled."""
    parser: str | None = None
    """Import path of a function that reads its turns; by default the workflow's for the role."""
    invalid_penalty: float = Field(0.0, ge=0, le=1e6)
    """Taken from the reward of a turn that the parser cannot read."""
    memory: bool = False
    """Whether its earlier exchanges of the episode stand before each new call."""
    trainable: bool = True
    """False: it speaks, but its turns are never trained on."""
    algorithm: Named | None = None
    """How credit is given to this agent; by default as for the team."""
    cross_policy: CrossPolicyConfig | None = None
    """Draw who samples each of its turns: its policy, or earlier weights of it. Those turns are
    trained too, with the log-probs of who sampled them."""
    tools: ToolsConfig | None = None
    """What it may call; it is asked again with the results until it calls nothing."""


class Adapter(Section):
    """A LoRA adapter (PEFT): small trained matrices beside frozen base weights."""

    rank: int = Field(32, ge=1, le=65_536)
    """Inner size of the two matrices."""
    alpha: float | None = Field(None, gt=0, le=1e6)
    """The adapter's output is multiplied by alpha / rank; by default twice the rank."""
    targets: str | list[str] = "all-linear"
    """Names of the modules that are adapted."""

    @model_validator(mode="after")
    def _scale_by_rank(self) -> Adapter:
        """So that an adapter of another rank learns at the same scale."""
        if self.alpha is None:
            self.alpha = 2.0 * self.rank
        return self


class OpponentPoolConfig(Section):
    """Whose weights of earlier steps a policy plays."""

    of: str
    """A trained policy of the same base."""
    every: int = Field(5, ge=1, le=1_000_000_000)
    """Steps after which its weights are kept."""
    keep: int = Field(8, ge=2, le=10_000)
    """Most that are kept: those of the run's beginning, and the newest."""


class ReplyConfig(Section):
    """The sampling of replies to a coach, a judge or a simulated user."""

    temperature: float | None = Field(None, ge=0, le=100)
    """Temperature of the replies; by default the server's own, and 1 of engines with a base."""
    max_tokens: int = Field(4096, ge=1, le=10_000_000)
    """Most tokens of a reply, reasoning included."""


class PolicyConfig(Section):
    """Named weights."""

    base: str = ""
    """A local model folder, a hub name, or `tiny:NAME` for a model inside the package. Every engine
    needs one but `openai`, `anthropic` and `google`, which take messages."""
    replies: ReplyConfig | None = None
    """How it replies where a reward or the environment names it as its coach, judge or user. Agents
    have a `sampling` of their own."""
    adapter: Adapter | None = None
    """Train a LoRA adapter beside the frozen base instead of all weights."""
    quantization: Literal["none", "8bit", "4bit"] = "none"
    """Hold the linear layers of a frozen base in 8 or 4 bits (bitsandbytes; QLoRA): of a policy
    that trains an adapter, or that is not trained. Needs `pip install 'rolecall[quantize]'`."""
    optimizer: Optimizer | None = None
    """How the weights are updated."""
    reference: str | None = None
    """Frozen weights that KL and DPO compare with: `initial` (this policy's own as the run
    begins; with an adapter, its base, unless an earlier stage has trained it) or another base."""
    reference_update_every: int | None = Field(None, ge=1, le=1_000_000_000)
    """Steps after which the reference takes over the policy's own weights (iterative DPO, SPIN); by
    default it keeps those that it has."""
    opponent_pool: OpponentPoolConfig | None = None
    """Play weights that another policy had before, sampled anew for each step: an opponent for
    self-play. Evaluations are played against those of the run's beginning."""
    template: JsonObject = {}
    """Options for the chat template, e.g. {enable_thinking: false} for Qwen3."""
    device: str | None = None
    """Where it lives: cpu, cuda, cuda:1, mps ...; by default learner.device."""
    pool: str | None = None
    """The pool of a cluster whose GPUs its engines and ranks use; by default the only one."""
    colocate: bool = False
    """Share GPUs of the pool with all other policies that say so, and take turns on them: engines
    sleep while weights are updated. Otherwise its engines and ranks have GPUs of their own."""
    max_staleness: int | None = Field(None, ge=0, le=1000)
    """Updates that its own turns may lag behind, where that is less than the others may
    (trainer.max_staleness): older ones are not trained, and count only where others are compared
    with them."""
    engine: EngineConfig | None = None
    """What samples it, where not all policies have the same: what differs from `engine`."""
    learner: LearnerConfig | None = None
    """What trains it: what differs from `learner`."""


class CriticConfig(Section):
    """A critic, which predicts rewards."""

    base: str | None = None
    """Model that reads the conversation: the critic's own weights for `team`, frozen for `mixer`
    (QMIX only) and `discriminator`; `agent` is a head on each policy's own model and has none."""
    optimizer: Optimizer = Optimizer()
    """How it is updated; lr is 1e-5 by default."""
    heads: int = Field(1, ge=1, le=64)
    """Of `agent`: value heads of each policy. The n-th values an agent's n-th turn in an episode,
    as a critic for each round of a debate; the last one values all later turns."""


class CurriculumConfig(Section):
    """Tasks that the team passes now and then are sampled more often than easy or hopeless ones."""

    by: Literal["task", "source", "family"] = "task"
    """Whose pass rate p counts: each task's own (finite train splits), each source's, or each
    family's, whose shares of a step then follow it. The weight in a draw is p (1 - p) + floor."""
    prior: float = Field(0.5, ge=0, le=1)
    """Pass rate of what nobody has tried yet."""
    newest: float = Field(0.5, gt=0, le=1)
    """How far the mean score of a step moves the pass rate towards itself."""
    floor: float = Field(0.05, gt=0, le=1e6)
    """What every weight has, so that nothing starves."""


class RolloutConfig(Section):
    """The episodes that a step collects."""

    groups: int = Field(32, ge=1, le=1_000_000)
    """Tasks in a step."""
    group_size: int = Field(8, ge=1, le=100_000)
    """Attempts at each task, which are compared with one another. A row of `data` is one attempt,
    or one pair."""
    stratify: bool = False
    """Each source of a finite train split has the same share of every step's tasks."""
    curriculum: CurriculumConfig | None = None
    """Draw tasks by how often the team passes them; `{}` turns it on."""
    data: str | None = None
    """File (JSON Lines or Parquet) that is trained on instead of episodes: demonstrations for sft,
    preferences for dpo."""
    timeout_s: float = Field(600.0, gt=0, le=1e7)
    """Most seconds an episode may take."""
    deadline_s: float | None = Field(None, gt=0, le=1e7)
    """Most seconds that a step waits for its episodes. Those that have not ended are cut and
    counted, and their groups are trained without them."""
    carry: int = Field(0, ge=0, le=1000)
    """Instead of cutting them: most later steps to which groups that have not ended are carried
    over (partial rollouts). They go on, and may be this much staler than trainer.max_staleness,
    which must be at least 1."""
    retries: int = Field(2, ge=0, le=1000)
    """Repeats, with new seeds, of an episode that something outside of its code let down."""
    concurrency: int = Field(256, ge=1, le=10_000_000)
    """Episodes under way at once."""
    allow_filtered_sampling: bool = False
    """Train although top_p, top_k or temperature 0 make the sampler another distribution."""


class RewardConfig(Section):
    """A reward with options of its own."""

    model_config = ConfigDict(extra="allow")

    weight: Weight = 1.0
    """What its numbers are multiplied by."""

    @property
    def options(self) -> Options:
        return dict(self.model_extra or {})


class TrainerConfig(Section):
    """The run."""

    steps: int = Field(200, ge=1, le=1_000_000_000)
    """Steps: each collects episodes, gives credit and updates every policy once."""
    seed: int = Field(0, ge=-(2**63), lt=2**63)
    """Every task, draw and shuffle derives from it."""
    max_staleness: int = Field(0, ge=0, le=1000)
    """Updates that a rollout may lag behind. Above 0, later steps are collected while an update
    runs, and the engine needs weights of its own (engine.separate_weights)."""
    deterministic: bool | None = None
    """Same seed, same run, bit for bit: the engine steps only while all episodes wait for it. By
    default so unless max_staleness is above 0 or the engine of an agent cannot promise it (vllm,
    sglang, and those of providers)."""
    save_every: int = Field(10, ge=1, le=1_000_000_000)
    """Steps between checkpoints; the last step is always saved."""
    keep: int = Field(2, ge=1, le=1_000_000_000)
    """Newest checkpoints to keep, beside the best."""
    idle_steps: int = Field(3, ge=1, le=1_000_000_000)
    """Steps in a row without anything to train on after which the run stops."""


class MetricsConfig(Section):
    """Selects what is measured beside what is free."""

    grad_norm_every: int | None = Field(None, ge=0, le=1_000_000_000)
    """Steps between exact gradient norms per agent, where agents share a policy; by default 1, and
    0 for never. A step that measures them holds one more gradient, and computes for each agent what
    several have in common in their prompts."""

    def grad_norms_in(self, step: int) -> bool:
        """Return whether a step measures them."""
        every = 1 if self.grad_norm_every is None else self.grad_norm_every
        return every > 0 and step % every == 0


class StageConfig(Section):
    """A stage of a run: the keys below, and any others of the config that differ in it."""

    model_config = ConfigDict(extra="forbid", serialize_by_alias=True)

    name: Name
    """Its own, and that of its folder in the run's folder."""
    source: Name | None = Field(None, alias="from")
    """Of a stage that trains, the earlier stage that collected its `rollout.data`; of one that
    collects, the earlier stage whose episodes are taken as they were played."""
    optimizer: Literal["fresh", "carried"] = "fresh"
    """Whether it begins with the optimizer's moments of the stage before, as it begins with its
    weights."""
    collect: CollectConfig | None = None
    """Train nothing: play a step's tasks and keep such turns as a data set; `{}` keeps all."""
    evaluate: bool = False
    """Train nothing: score the team on its held-out tasks."""

    @property
    def kind(self) -> Literal["train", "collect", "evaluate"]:
        if self.collect is not None:
            return "collect"
        return "evaluate" if self.evaluate else "train"


class Config(Section):
    """One run."""

    team: dict[Name, AgentConfig] = Field(min_length=1)
    """The agents, by name."""
    policies: dict[Name, PolicyConfig] = Field(min_length=1)
    """The weights, by name."""
    critics: dict[Name, CriticConfig] = {}
    """Critics that the algorithm needs, by the name it asks for: `agent`, a value head on each
    policy; `team`, a model that reads the whole conversation; `mixer`, utilities that VDN or QMIX
    adds up; `discriminator`, whose scores are MA-AIRL's rewards; or the critic of an algorithm of
    your own."""
    workflow: Named
    """How the agents talk."""
    environment: Named
    """What they work on."""
    rewards: dict[str, Weight | RewardConfig] = {"correct": 1.0}
    """Reward functions and their weights."""
    algorithm: Named
    """How credit is given."""
    rollout: RolloutConfig = RolloutConfig()
    """What a step collects."""
    trainer: TrainerConfig = TrainerConfig()
    """The run."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out tasks."""
    prices: dict[Name, PriceConfig] = {}
    """What tokens cost, by policy: evaluations then say what they cost, agent by agent, coaches
    what a score costs, and the budgets of engines count in dollars."""
    metrics: MetricsConfig = MetricsConfig()
    """What is measured beside what is free."""
    engine: EngineConfig = LocalEngineConfig()
    """What samples."""
    learner: LearnerConfig = LocalLearnerConfig()
    """What trains."""
    cluster: ClusterConfig = LocalClusterConfig()
    """The machines that it runs on."""
    trackers: list[Named] = []
    """Where metrics also go, beside metrics.jsonl: tensorboard, wandb, mlflow,
    trackio, weave."""
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
        """One error of all problems, each with the line of the file where its key stands."""
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
    """`vllm` stands for {name: vllm}, and `auto` for what it is here."""
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

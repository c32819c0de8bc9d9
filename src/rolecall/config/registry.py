"""Finds the function or class that a name or an import path stands for.

A name is a file of the package that holds the built-in things of that kind. An import path is
`package.module:name` or `path/to/file.py:name`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from rolecall.config.errors import explain
from rolecall.config.live_objects import IN_MEMORY, find_in_memory
from rolecall.config.user_code_location import UserCallable, locate_error
from rolecall.core.errors import ConfigError, first_line, nearest
from rolecall.core.interfaces.chat_model import ChatModel
from rolecall.core.json_types import Options

# kind -> name -> "module:attribute"; nothing is imported before it is asked for
BUILT_IN: dict[str, dict[str, str]] = {
    "workflow": {
        "ab_mcts": "rolecall.workflows.ab_mcts:ab_mcts",
        "actor_critic": "rolecall.workflows.actor_critic:actor_critic",
        "chain": "rolecall.workflows.chain:chain",
        "coder_tester": "rolecall.workflows.coder_tester:coder_tester",
        "data_science": "rolecall.workflows.data_science:data_science",
        "debate": "rolecall.workflows.debate:debate",
        "experience": "rolecall.workflows.experience:experience",
        "external": "rolecall.workflows.external:external",
        "graph": "rolecall.workflows.graph:graph",
        "in_turn": "rolecall.workflows.in_turn:in_turn",
        "leader_and_peers": "rolecall.workflows.leader_and_peers:leader_and_peers",
        "malt": "rolecall.workflows.malt:malt",
        "majority_vote": "rolecall.workflows.majority_vote:majority_vote",
        "mathchat": "rolecall.workflows.mathchat:mathchat",
        "mixture": "rolecall.workflows.mixture:mixture",
        "multi_turn": "rolecall.workflows.multi_turn:multi_turn",
        "pioneer_observer": "rolecall.workflows.pioneer_observer:pioneer_observer",
        "planner_workers": "rolecall.workflows.planner_workers:planner_workers",
        "reflection": "rolecall.workflows.reflection:reflection",
        "reflection_steps": "rolecall.workflows.reflection:reflection_steps",
        "remote": "rolecall.workflows.remote:remote",
        "search_team": "rolecall.workflows.search_team:search_team",
        "self_play": "rolecall.workflows.self_play:self_play",
        "single": "rolecall.workflows.single:single",
        "solver_verifier": "rolecall.workflows.solver_verifier:solver_verifier",
        "tool_planner": "rolecall.workflows.tool_planner:tool_planner",
    },
    "environment": {
        "code": "rolecall.environments.code.environment:CodeEnvironment",
        "data_science": "rolecall.environments.data_science.environment:DataScienceEnvironment",
        "debate": "rolecall.environments.debate:DebateEnvironment",
        "external": "rolecall.environments.external:ExternalEnvironment",
        "games": "rolecall.environments.games.environment:GameEnvironment",
        "gem": "rolecall.environments.gem:GemEnvironment",
        "gymnasium": "rolecall.environments.gymnasium.environment:GymnasiumEnvironment",
        "kitchen": "rolecall.environments.kitchen.environment:KitchenEnvironment",
        "llm": "rolecall.environments.llm.environment:LlmEnvironment",
        "math": "rolecall.environments.math.environment:MathEnvironment",
        "mixed": "rolecall.environments.mixed:MixedEnvironment",
        "openenv": "rolecall.environments.openenv.environment:OpenEnvEnvironment",
        "pettingzoo": "rolecall.environments.pettingzoo.environment:PettingZooEnvironment",
        "plan_path": "rolecall.environments.grid_worlds.plan_path:PlanPathEnvironment",
        "reasoning_gym": "rolecall.environments.reasoning_gym:ReasoningGymEnvironment",
        "remote": "rolecall.environments.remote.environment:RemoteEnvironment",
        "search": "rolecall.environments.search.environment:SearchEnvironment",
        "sokoban": "rolecall.environments.grid_worlds.sokoban:SokobanEnvironment",
        "sudoku": "rolecall.environments.grid_worlds.sudoku:SudokuEnvironment",
        "text": "rolecall.environments.text.environment:TextEnvironment",
        "textarena": "rolecall.environments.textarena:TextArenaEnvironment",
        "tool_use": "rolecall.environments.tool_use.environment:ToolUseEnvironment",
    },
    "reward": {
        "checked_steps": "rolecall.rewards.coach.checked_steps:CheckedSteps",
        "coach": "rolecall.rewards.coach.coach:Coach",
        "correct": "rolecall.rewards.correct:correct",
        "diversity": "rolecall.rewards.diversity:Diversity",
        "format": "rolecall.rewards.format:format_share",
        "judge": "rolecall.rewards.judge:JudgedAnswer",
        "majority": "rolecall.rewards.majority:Majority",
        "matpo": "rolecall.rewards.planner_workers:Matpo",
        "mgrpo": "rolecall.rewards.planner_workers:MGrpo",
        "mrlm_code": "rolecall.rewards.mrlm:Code",
        "mrlm_debate": "rolecall.rewards.mrlm_debate:Debate",
        "mrlm_math": "rolecall.rewards.mrlm:Maths",
        "mrlm_tool": "rolecall.rewards.mrlm:Tool",
        "overlong": "rolecall.rewards.overlong:Overlong",
        "own_answers": "rolecall.rewards.own_answers:OwnAnswers",
        "posted": "rolecall.rewards.posted:read_posted",
        "proposals": "rolecall.rewards.proposals:Proposals",
        "refined": "rolecall.rewards.refined:Refined",
        "remote_model": "rolecall.rewards.remote_model:RemoteModel",
        "repetition": "rolecall.rewards.repetition:Repetition",
        "reward_model": "rolecall.rewards.reward_model:RewardModel",
    },
    "algorithm": {
        "grpo": "rolecall.algorithms.grpo:Grpo",
        "drmas": "rolecall.algorithms.drmas:DrMas",
        "rloo": "rolecall.algorithms.rloo:Rloo",
        "pass_at_k": "rolecall.algorithms.pass_at_k:PassAtK",
        "remax": "rolecall.algorithms.remax:ReMax",
        "dr_grpo": "rolecall.algorithms.dr_grpo:DrGrpo",
        "gspo": "rolecall.algorithms.gspo:Gspo",
        "gigpo": "rolecall.algorithms.gigpo:Gigpo",
        "matpo": "rolecall.algorithms.matpo:Matpo",
        "agentrl": "rolecall.algorithms.agentrl:AgentRl",
        "leader_only": "rolecall.algorithms.leader_only:LeaderOnly",
        "reinforce_pp": "rolecall.algorithms.reinforce:ReinforcePlusPlus",
        "reinforce_pp_baseline": "rolecall.algorithms.reinforce:ReinforcePlusPlusBaseline",
        "reinforce_baseline": "rolecall.algorithms.reinforce_baseline:ReinforceBaseline",
        "mgrpo": "rolecall.algorithms.mgrpo:MGrpo",
        "dapo": "rolecall.algorithms.dapo:Dapo",
        "ppo": "rolecall.algorithms.ppo:Ppo",
        "ppo_critic": "rolecall.algorithms.ppo_critic:PpoCritic",
        "a2c": "rolecall.algorithms.a2c:A2c",
        "maporl": "rolecall.algorithms.maporl:Maporl",
        "cory": "rolecall.algorithms.cory:Cory",
        "marft": "rolecall.algorithms.marft:Marft",
        "marft_token": "rolecall.algorithms.marft_token:MarftToken",
        "mappo": "rolecall.algorithms.mappo:Mappo",
        "happo": "rolecall.algorithms.happo:Happo",
        "vdn": "rolecall.algorithms.mixing:Vdn",
        "qmix": "rolecall.algorithms.mixing:Qmix",
        "vdn_value": "rolecall.algorithms.value_learning:VdnValue",
        "qmix_value": "rolecall.algorithms.value_learning:QmixValue",
        "at_grpo": "rolecall.algorithms.at_grpo:AtGrpo",
        "counterfactual": "rolecall.algorithms.counterfactual:Counterfactual",
        "dpo": "rolecall.algorithms.dpo:Dpo",
        "sft": "rolecall.algorithms.sft:Sft",
        "ma_airl": "rolecall.algorithms.ma_airl:MaAirl",
        "read": "rolecall.algorithms.read:ReAd",
        "spin": "rolecall.algorithms.spin:Spin",
    },
    "tool": {
        "calculator": "rolecall.tools.calculator:calculator",
        "files": "rolecall.tools.files:Files",
        "mcp": "rolecall.tools.mcp:Mcp",
        "python": "rolecall.tools.python:Python",
        "search": "rolecall.tools.search:Search",
        "world": "rolecall.tools.use:WorldTools",
    },
    "engine": {
        "anthropic": "rolecall.engines.served.backend:AnthropicBackend",
        "google": "rolecall.engines.served.backend:GoogleBackend",
        "local": "rolecall.engines.local.backend:LocalBackend",
        "openai": "rolecall.engines.served.backend:OpenAIBackend",
        "sglang": "rolecall.engines.served.backend:SGLangBackend",
        "vllm": "rolecall.engines.vllm.backend:VllmBackend",
    },
    "learner": {
        "fsdp": "rolecall.learners.backend:RankedBackend",
        "local": "rolecall.learners.backend:LocalLearnerBackend",
        "replicated": "rolecall.learners.backend:RankedBackend",
    },
    "parser": {},
    "tracker": {
        "mlflow": "rolecall.monitor.trackers:MLflow",
        "tensorboard": "rolecall.monitor.trackers:TensorBoard",
        "trackio": "rolecall.monitor.trackers:Trackio",
        "wandb": "rolecall.monitor.trackers:WeightsAndBiases",
        "weave": "rolecall.monitor.traces:Weave",
    },
}


def resolve(kind: str, name: str, *, key: str) -> Any:
    """Return the object behind a name. Raises ConfigError that names the config key."""
    names = BUILT_IN[kind]
    if name not in names and ":" not in name:
        raise ConfigError(f"{key}: there is no {kind} {name!r}; {nearest(name, list(names))}")
    return import_object(names.get(name, name), key=key)


def import_object(path: str, *, key: str) -> Any:
    """Import the object at an import path. Raises ConfigError that names the config key."""
    module, colon, attribute = path.rpartition(":")
    if not colon:
        raise ConfigError(f"{key}: {path!r} is no import path such as path/to/file.py:name")
    if module == IN_MEMORY:
        return find_in_memory(attribute, key=key)
    try:
        holder = _module(module)
    except (ImportError, OSError, SyntaxError) as error:
        raise ConfigError(f"{key}: {path!r} cannot be imported: {error}") from error
    except Exception as error:  # the file is the user's: whatever it raises is told with its line
        where = f" ({line})" if (line := locate_error(error)) else ""
        raise ConfigError(
            f"{key}: {path!r} cannot be imported: {first_line(error)}{where}"
        ) from error
    try:
        return getattr(holder, attribute)
    except AttributeError as error:
        raise ConfigError(f"{key}: {module} has no {attribute!r}") from error
    except ImportError as error:  # an old name
        raise ConfigError(f"{key}: {error}") from error


@cache
def _module(name: str) -> types.ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).expanduser().resolve()
    main = sys.modules.get("__main__")
    if (own := getattr(main, "__file__", None)) and Path(own).resolve() == path:
        assert main is not None
        return main  # the program itself, which would otherwise be run once more
    spec = importlib.util.spec_from_file_location(f"rolecall_user_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise OSError(f"there is no file {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _check_policy(value: Any) -> str | ChatModel:
    """Check that a value is a policy's name, or the model that setup puts in its stead."""
    if isinstance(value, str | ChatModel):
        return value
    raise ValueError("write the name of a policy")


PolicyName = Annotated[Any, BeforeValidator(_check_policy)]


def list_chat_options(call: UserCallable) -> list[str]:
    """Return the options that name a policy: those of the type ChatModel."""
    if isinstance(call, type) and issubclass(call, BaseModel):
        return []
    return [name for name, hint in _hints(call).items() if _is_chat(hint)]


def _is_chat(hint: Any) -> bool:
    return hint is ChatModel or ChatModel in get_args(hint)


def _hints(call: UserCallable) -> dict[str, Any]:
    # A class says the types of its options at __init__; its signature already leaves out self.
    described = call.__dict__.get("__init__", call) if isinstance(call, type) else call
    return get_type_hints(described, include_extras=True)


def options_model(call: UserCallable, *, skip: int) -> type[BaseModel]:
    """Return the keyword options of a function or class, as a model that checks their types."""
    if isinstance(call, type) and issubclass(call, BaseModel):
        return call
    parameters = list(inspect.signature(call).parameters.values())[skip:]
    hints = {n: PolicyName if _is_chat(hint) else hint for n, hint in _hints(call).items()}
    fields: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), Field(... if p.default is p.empty else p.default))
        for p in parameters
    }
    return create_model(
        "Options", __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields
    )


def check_options(call: UserCallable, options: Options, *, key: str, skip: int) -> Options:
    """Options with the types that a signature asks for. Raises ConfigError under the config key."""
    model = options_model(call, skip=skip)
    try:
        checked = model.model_validate(options)
    except ValidationError as error:
        raise explain(error, model, options, prefix=key) from error
    return {name: getattr(checked, name) for name in options}

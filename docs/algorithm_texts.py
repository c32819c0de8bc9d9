"""Holds what docs/algorithms.md says of each algorithm beside what the code says.

Formulas, papers and the tests that prove them (`file::function` below `tests/`). A mistake is
something that was seen in public code.
"""

from __future__ import annotations

from dataclasses import dataclass

ANY = "any"


@dataclass(frozen=True, slots=True)
class Said:
    """The written part of one algorithm's section."""

    papers: tuple[str, ...]  # arXiv numbers
    scope: str  # what a turn is compared with, in the table
    formula: str  # lines of a code block; the legend stands at the head of the page
    differs: str  # from the paper
    mistakes: tuple[str, ...]
    tests: tuple[str, ...]
    turns: str = "each"  # whether credit is defined where an agent speaks several times
    policies: str = ANY  # of the agents
    proofs: tuple[str, ...] = ()  # beside those that import the algorithm


TEXTS: dict[str, Said] = {
    "grpo": Said(
        ("2402.03300",),
        "attempts at the task",
        """
A_t = (R(e,i) - mean) / (std + 1e-6)      mean and std of R over the attempts at the task
team of one trained agent: s_t in place of R
of several trained agents: A_t += r_t - (mean of r over the agent's turns of the task)
what the workflow paid for a turn is in R, and not in r_t
""",
        "The paper's 64 attempts and its KL of 0.04 are not defaults: write `kl: 0.04`. How "
        "rewards of single actions enter a team's statistics is ours, because a penalty on one "
        "agent must not move another's advantages: in Dr. MAS's code with `group_by_agent_id` off "
        "the penalty for an invalid action is subtracted from that turn's score, and every agent "
        "of the attempt then gets the mean of the attempt's scores, penalties of the others "
        "included. That code also keeps the raw score of a group of one as its advantage, where "
        "ours is 0. The test for a constant group is on equality.",
        (
            "Groups whose members are answers to different problems.",
            "Advantages that are normalised by group and whitened over the batch again.",
            "Eight equal rewards of 0.9 in float32, divided by a spread that is only rounding: "
            "-0.056 each instead of 0.",
        ),
        (
            "algorithms/test_credit.py::test_grpo_known_answers",
            "algorithms/test_normalisation.py::test_every_normalisation_is_its_definition",
        ),
        turns="one number",
    ),
    "drmas": Said(
        ("2602.08847",),
        "the agent's own turns at the task",
        """
A_t = (s_t - mean_i) / (std_i + 1e-6)     mean and std over the turns of agent i at the task
""",
        "None of the formula: every call is a sample, as published; `count: episode_agent` counts "
        "an episode once. In the published code a turn's score is the outcome of its episode less "
        "its own penalty for an invalid action, which is s_t here; a group of one keeps that score "
        "there, and has an advantage of 0 here.",
        (
            "A group of one that keeps its raw reward as its advantage.",
            "Rows that were copied to fill a batch and then enter mean and spread.",
            "One coefficient of the penalty for invalid actions, though roles differ.",
        ),
        (
            "algorithms/test_credit.py::test_drmas_counts_every_call_as_published",
            "algorithms/test_credit.py::test_drmas_second_moments_are_one_for_each_agent_and_grpos_are_not",
        ),
    ),
    "rloo": Said(
        ("2402.14740",),
        "the agent's other attempts at the task",
        """
A_t = s_t - mean over attempts e' != e of (the agent's mean score in e')
loss = -w A_t sum_l lp_l                  no ratio; C(rho, A) where a step has several updates
kl > 0: s_t includes -kl sum_l (old_l - ref_l)
""",
        "The paper's KL of 0.03 is not a default. One update of a step has no clip; several are "
        "clipped as in GRPO, which is ours.",
        (
            "A single attempt that keeps its raw reward.",
            "A baseline that leaves out the row and not the attempt, so that an attempt of several "
            "rows is compared with itself.",
        ),
        (
            "algorithms/test_rloo.py::test_known_answers",
            "algorithms/test_rloo.py::test_the_baseline_leaves_out_every_turn_of_the_attempt_and_uses_all_of_the_others",
        ),
    ),
    "pass_at_k": Said(
        ("2508.10751",),
        "the agent's attempts at the task, in all groups of k",
        """
N attempts of the agent, M of them wrong; an attempt is right if R + sum of its r_t >= right
mean = 1 - C(M, k) / C(N, k)              std = sqrt(mean (1 - mean))
right: A_t = (1 - mean) / (std + 1e-6)
wrong: A_t = (1 - C(M-1, k-1) / C(N-1, k-1) - mean) / (std + 1e-6)
""",
        "Rewards of the paper are 0 and 1; any other counts as right from `right` on. With several "
        "agents each is compared with itself.",
        (
            "A group of fewer than k attempts, for which C(N, k) is 0.",
            "Sampled groups in place of all of them, whose advantages are noisier.",
        ),
        (
            "algorithms/test_pass_at_k.py::test_known_answers",
            "algorithms/test_pass_at_k.py::test_the_closed_form_is_the_mean_over_all_groups",
        ),
    ),
    "remax": Said(
        ("2310.10505",),
        "a greedy play of its task",
        """
A_t = G(e) - G(greedy) + r_t              greedy: the same task and world at temperature 0
G = R and what the agent's turns were paid by the workflow or the world, which is not in r_t then
loss = -w A_t sum_l lp_l                  no ratio; C(rho, A) where a step has several updates
greedy play failed: as rloo
""",
        "The paper samples one answer to a prompt, `rollout.group_size: 1`; with more, all are "
        "compared with one greedy play. With a team all agents are greedy in it.",
        ("A greedy answer that is sampled by other weights than the answers.",),
        (
            "algorithms/test_remax.py::test_known_answers",
            "algorithms/test_remax.py::test_the_greedy_play_is_at_temperature_0_and_is_not_trained",
        ),
    ),
    "dr_grpo": Said(
        ("2503.20783",),
        "attempts at the task",
        """
A_t = R(e,i) - mean                       = (K-1)/K times RLOO's, of K attempts
loss = sum over tokens / (S * L)          L = turn_length
""",
        "The paper divides by a fixed 3000 tokens; here L is the largest `max_tokens` of the team.",
        ("Dividing by the padded length of the micro-batch, so that packing changes the step.",),
        (
            "algorithms/test_normalisation.py::test_dr_grpo_known_answer_and_its_share_of_rloo",
            "algorithms/test_losses.py::test_aggregation_known_answers",
        ),
        turns="one number",
    ),
    "gspo": Said(
        ("2507.18071",),
        "attempts at the task",
        """
A as grpo
sigma_t = exp(mean over the turn's tokens of (lp - anchor))
token form: sigma_l = stop(sigma_t) exp(lp_l - stop(lp_l)), in C(sigma_l, A_l)
""",
        "The unit of the ratio is a turn, not a whole episode: that is ours. The token form of "
        "section 4.2 has the value and the gradient of the sequence form while A is constant in "
        "the turn.",
        (
            "Run with a clip of 0.2, at which the ratio of an utterance never clips.",
            "A mean over the padded length.",
        ),
        (
            "algorithms/test_gspo.py::test_known_answer_of_the_ratio_and_its_gradient",
            "algorithms/test_gspo.py::test_the_gradient_is_that_of_the_sequence_form",
        ),
        turns="one number, a ratio each",
    ),
    "gigpo": Said(
        ("2505.10978",),
        "the agent's attempts at the task, turns in the same state",
        """
G_t = r_t + gamma G_next                  over the agent's turns; the last also earns R
A_t = [sum r + R - mean over the agent's attempts]
      + omega [G_t - mean over turns of the same (task, agent, state)]
std: task divides each bracket by its group's std + 1e-6
""",
        "The paper has one agent, and each trajectory is one sample of the first part. In a team "
        "each agent's trajectories are compared with each other in both parts, so that a teammate "
        "changes nothing; the paper does not say what to do there. A state is what the world "
        "showed the agent, as its `Observation.key` or text says, and in a tool loop what the "
        "tools returned. A turn without a new observation has the first part alone. `similarity` "
        "below 1 is that of Dr. MAS's scripts: a turn joins the first state whose text is similar.",
        (
            "The whole transcript as the state: no state is ever met twice, and the second part is "
            "0.",
            "The question as the state of episodes of one step: the second part repeats the first.",
        ),
        (
            "algorithms/test_gigpo.py::test_known_answer",
            "algorithms/test_gigpo.py::test_ragged_walks_of_two_agents_by_hand",
            "algorithms/test_gigpo.py::test_similar_observations_are_one_state",
        ),
        turns="by state",
    ),
    "matpo": Said(
        ("2510.04678",),
        "attempts at the task",
        """
A_t = (R(e) - mean) / (std + 1e-6)        on every token of the planner and of all workers of e
loss = mean over the tokens of planner and workers together
""",
        "The published loss of whole sequences is divided by the number of the planner's rollouts; "
        "ours is a mean over tokens. The scalar R is the reward `matpo`; a planner that calls "
        "nobody has no workers' form to lose.",
        (
            "The planner's row of advantages, zeros of its tool text included, copied to its "
            "workers: 4 of 7 of their tokens got 0.",
        ),
        (
            "algorithms/test_mgrpo.py::test_grpo_on_one_scalar_counts_a_rollout_once_however_many_workers_it_had",
            "rewards/test_planner_workers.py::test_matpo_is_one_scalar_of_accuracy_and_form",
        ),
        turns="one number",
        policies="one, as published",
    ),
    "agentrl": Said(
        ("2510.04206",),
        "attempts at the task, then its family",
        """
A as grpo, then for each family of tasks, over the tokens that a policy trains on in the step:
A <- (A - mean) / (std + 1e-6)
""",
        "Sampling by earlier weights, the paper's other half, is `team.AGENT.cross_policy`. Any "
        "other algorithm takes `per_family: true` as well.",
        ("Statistics over rows instead of tokens, or with padding in them.",),
        (
            "algorithms/test_whitening.py::test_families_of_unlike_sizes_become_alike",
            "algorithms/test_whitening.py::test_a_constant_family_becomes_0_and_moves_no_other",
        ),
        turns="one number",
    ),
    "leader_only": Said(
        ("2507.08960",),
        "candidates of the same prompt",
        """
A_t = r_t - mean of r over the candidates of one prompt
loss = sum over tokens / (S * L)          L = turn_length; peers have `trainable: false`
""",
        "The paper samples its peers' texts once, before training; ours are sampled in each step, "
        "once for all candidates. Its supervised warm start is a run of `sft` of its own, and its "
        "filter of tasks on which most peers are right is not here.",
        (
            "New answers of the peers for each answer of the leader: their luck is in its "
            "advantage.",
        ),
        (
            "workflows/test_teams.py::test_the_leaders_answers_read_the_same_words_of_its_peers_and_the_best_is_played",
        ),
        policies="the leader's; peers frozen",
    ),
    "reinforce_pp": Said(
        ("2501.03262",),
        "its policy's tokens of the step",
        """
c_k = -kl (old_k - ref_k), and clip(s_t, +-reward_clip) on the turn's last token
G_l = sum_{k >= l} gamma^(k-l) c_k
A_l = (G_l - mean) / (std + 1e-8)         over all trained tokens of the policy in the step
""",
        "Each policy is whitened by itself, not all of a team together: that is ours. Statistics "
        "weigh tokens, as public code does.",
        (
            "Whitening on each rank and once more over all of them.",
            "Masked tokens in the statistics.",
            "All agents' models whitened together.",
        ),
        (
            "algorithms/test_reinforce.py::test_known_answer_of_the_whitening",
            "algorithms/test_reinforce.py::test_known_answer_of_the_kl_as_a_cost_of_each_id",
        ),
        turns="within each",
    ),
    "reinforce_pp_baseline": Said(
        ("2501.03262",),
        "the agent's attempts, then its policy's step",
        """
A_t = clip(s_t, +-reward_clip) - mean_i   mean over the agent's attempts at the task
A <- A / (std + 1e-8)                     std over all trained tokens of the policy in the step
loss: + kl * k2, k2 = (ref - lp)^2 / 2
""",
        "No second mean is subtracted, so that a constant group stays exactly 0: that is ours.",
        ("As `reinforce_pp`.",),
        (
            "algorithms/test_reinforce.py::test_known_answer_of_the_baseline_variant",
            "algorithms/test_reinforce.py::test_the_baseline_variant_subtracts_no_second_mean",
        ),
    ),
    "reinforce_baseline": Said(
        ("2506.24119",),
        "earlier games of its seat",
        """
A_t = s_t - b(source, seat)
b <- decay b + (1 - decay) s              game by game, after it was read; b starts at 0
""",
        "None known in the credit; the loss is the clipped one.",
        ("One baseline for both seats: in a zero-sum game their mean is 0 whatever a seat earns.",),
        (
            "algorithms/test_reinforce_baseline.py::test_known_answer_of_payoffs_against_the_average_before_them",
            "algorithms/test_reinforce_baseline.py::test_a_group_mean_knows_nothing_of_a_seats_luck",
        ),
    ),
    "mgrpo": Said(
        ("2511.13288",),
        "the agent's calls, each attempt once",
        """
w_c = calls / (number of the agent's calls in the attempt)     of each call c
A_t = (s_t - mean_w) / (std_w + 1e-6)     mean and std over calls, weighted; n is their sum less 1
loss: turn.weight proportional to 1 / (number of calls), its sum over tokens as without weights
""",
        "The paper repeats or drops calls at random until each attempt has equally many. A weight "
        "has the same mean and no luck in it. `calls` is what the paper calls D; it enters the "
        "spread's denominator alone. The paper's weights of rewards could not be verified, so that "
        "the reward `mgrpo` has no defaults.",
        (
            "Groups of eight arrivals in a queue, from different questions.",
            "No alignment at all: attempts that call often decide the mean.",
        ),
        (
            "algorithms/test_mgrpo.py::test_known_answer_of_one_call_against_three",
            "algorithms/test_mgrpo.py::test_weights_are_the_mean_of_what_repeating_and_dropping_at_random_gives",
        ),
        turns="calls of any number",
    ),
    "dapo": Said(
        ("2503.14476",),
        "attempts at the task",
        """
A as grpo; r_t += -clamp((length - (longest - length_cache)) / length_cache, 0, 1)
C with 1 - clip_low and 1 + clip_high; loss = mean over tokens
a group whose owners all earned the same in every attempt is replaced by a new task
""",
        "After ten rounds of new tasks the step trains on what it has and says so. `longest` is "
        "the team's largest `max_tokens` and `length_cache` a fifth of it, where the paper has "
        "20480 and 4096; 16 attempts and 512 tasks a step are not defaults.",
        (
            "A second round that draws the same tasks again.",
            "A filter that looks at no reward and so never filters.",
            "A filter after shaping: unequal lengths pass for signal.",
        ),
        (
            "algorithms/test_dapo.py::test_length_penalty_known_answers",
            "algorithms/test_dapo.py::test_groups_without_signal_are_filtered",
        ),
        turns="one number",
    ),
    "ppo": Said(
        ("1707.06347", "1506.02438", "2011.09533"),
        "its value head",
        """
chain: the tokens of all turns of agent i in the episode; r_t on a turn's last token, R on the last
delta_l = r_l + g_l V_{l+1} - V_l;  A_l = delta_l + g_l lam A_{l+1};  returns = A + V
g_l = gamma, and gamma_turn from one turn to the agent's next;  A is whitened over the policy
v' = v_old + clamp(v - v_old, +-clip_value)
loss: + value_coef * 0.5 max((v - ret)^2, (v' - ret)^2)
""",
        "For a team this is IPPO. Classical rates (3e-4, gamma .99) are for small networks and no "
        "defaults. A cut episode is terminal. In Dr. MAS's code (`adv_estimator=gae`) every turn "
        "is a sequence of its own with the whole outcome on its last token, its returns end with "
        "the turn, one critic serves all agents, and advantages are whitened over the tokens of "
        "all of them; here the outcome is paid once, on the agent's last turn, returns run over "
        "its turns, and the tokens of a policy are whitened apart from those of others.",
        (
            "Each turn as an episode of its own, so that the outcome is paid several times.",
            "Returns made of advantages that were whitened already.",
            "A value clip around itself, which never clips.",
            "An advantage of 0 taken for a missing one.",
        ),
        (
            "algorithms/test_ppo.py::test_known_answers",
            "algorithms/test_ppo.py::test_returns_are_advantages_plus_values_before_any_whitening",
        ),
        turns="chained",
    ),
    "ppo_critic": Said(
        ("1707.06347",),
        "what a model of its own expected of its token",
        """
A_l by GAE over the tokens of the agent's turns, as in ppo, with V of critics.token
loss = C(rho, A)                          of the policy alone
critic: .5 max((V - G)^2, (clip(V, old V +- clip_value) - G)^2), G = A + old V before whitening
""",
        "The critic learns after the policies, from the same turns, `critic_epochs` steps. Values "
        "and returns are not normalised.",
        (
            "A critic with another tokenizer, whose values stand at other tokens.",
            "The state after a token as that before it.",
        ),
        (
            "critics/test_tokens.py::test_values_are_read_where_each_token_is_predicted",
            "critics/test_tokens.py::test_the_critic_learns_what_turns_earn",
        ),
    ),
    "a2c": Said(
        ("1602.01783",),
        "its value head",
        """
A and returns as ppo, lam 1, not whitened
loss = -w rho A + value_coef * 0.5 (v - ret)^2      rho is 1 in the first epoch; no clip
""",
        "The synchronous form; for a team IA2C. A second epoch is weighted by the ratio, which is "
        "ours.",
        ("A ratio that is clipped, which makes it PPO.",),
        (
            "algorithms/test_actor_critics.py::test_a2c_is_the_return_less_the_value_and_its_gradient_is_not_clipped",
            "algorithms/test_actor_critics.py::test_a2c_has_the_gradient_of_a_log_p_and_an_unclipped_value_loss",
        ),
        turns="chained",
    ),
    "maporl": Said(
        ("2502.18439",),
        "its value head",
        """
return of round t = (score_t + sum_{u > t} g^(u-t) mean_b score_u^b) / (sum_{u >= t} g^(u-t))
                    + bonus(a0..a3);   g = gamma_round, b: who answered in round u
A: GAE within the turn only, because the return has looked ahead; then whitened
""",
        "A round is an answer of each agent: turns that call tools or had to be asked again belong "
        "to the answer that follows. "
        "Signs of the bonuses follow their meaning: who corrects another is paid, who misleads "
        "pays. The paper's table of them could not be verified, and all are 0 by default.",
        (
            "Signs of influence inverted: correcting a peer was paid -a3, misleading one +a3.",
            "A score of -1 as the mark of a round that was not played, which drops true rewards of "
            "-1.",
        ),
        (
            "algorithms/test_actor_critics.py::test_maporl_known_answers",
            "algorithms/test_actor_critics.py::test_maporl_pays_influence_with_the_sign_of_what_it_did",
        ),
        turns="rounds",
    ),
    "cory": Said(
        ("2410.06101",),
        "its value head",
        """
reward of token l = -eta_p (old_l - ref_l), and R(pioneer) + R(observer) on the last; then as ppo
eta_p <- eta_p (1 + clamp(KL_p / kl_target - 1, +-0.2) * turns / horizon)     of each policy p
""",
        "The published trainer leaves out a minibatch whose mean ratio exceeds 10; ours looks at a "
        "micro-batch, which is what one forward pass holds. The published script for IMDB also "
        "subtracts the running mean of the summed scores of each of the two trainers and divides "
        "by their running spread before the KL is added; ours pays the sum as it is, so that "
        "`kl` is a price in units of the score, and scales advantages alone (`whiten`). Its KL is "
        "summed over the vocabulary, ours is that of the sampled token. A swap changes who speaks "
        "first and nothing else: optimizer, value head and KL coefficient stay with their policy.",
        (
            "A swap by reloading, which resets optimizer, KL coefficient and moments every time.",
            "An option for the kind of reward that nothing reads.",
            "Sampling with a repetition penalty of 1.1 and training on the plain softmax.",
        ),
        (
            "algorithms/test_actor_critics.py::test_cory_takes_the_kl_of_each_token_and_pays_the_sum_with_the_last",
            "algorithms/test_actor_critics.py::test_the_coefficient_of_the_kl_follows_its_target_and_stays_with_its_policy",
        ),
        turns="one each",
        policies="two",
    ),
    "marft": Said(
        ("2504.16129",),
        "a critic of all that was said",
        """
chain: the played turns of all agents in order; V reads what was said before the turn
A: GAE over turns, whitened;  rho = exp(sum over the turn's tokens of (lp - anchor))
ratio: token  divides that sum by the turn's tokens, ratio: word  by its words
""",
        "The published gamma of .99, its rates and its entropy bonus are not defaults. Words are "
        "what spaces and line ends separate.",
        (
            "A gamma of .99 for each token, which leaves .076 of a reward after 256 of them.",
            "An early stop at a KL of 1e-6, which skips nearly every step.",
            "A sequential update without the factor M: it is no HAPPO.",
        ),
        (
            "algorithms/test_actor_critics.py::test_marft_chains_the_turns_of_all_agents",
            "algorithms/test_actor_critics.py::test_marfts_loss_is_that_of_whole_utterances",
            "algorithms/test_actor_critics.py::"
            "test_marfts_ratio_by_words_of_three_ragged_utterances_of_two_agents",
        ),
        turns="chained over agents",
    ),
    "marft_token": Said(
        ("2504.16129",),
        "value heads, agent by agent",
        """
chain: the tokens of all turns of the episode; an agent's last is followed by the next one's first
A: GAE over tokens, whitened; loss as ppo
""",
        "The paper has one critic for all agents. Ours uses each agent's own value head, which "
        "reads what its agent is told; agents on one policy share it.",
        ("As `marft`.",),
        (
            "algorithms/test_actor_critics.py::test_marft_token_chains_from_token_to_token_and_agent_to_agent",
            "algorithms/test_actor_critics.py::test_marft_token_of_ragged_episodes_by_an_oracle",
        ),
        turns="chained over agents",
    ),
    "mappo": Said(
        ("2103.01955",),
        "a critic of all that was said",
        """
chain: joint steps of the episode; turns that did not hear each other share one, its V and its A
A: GAE over joint steps on the sum of their r_t, the outcome at the end; whitened over turns
critic: Huber loss of the returns, normalised by running moments
""",
        "Time is counted in joint steps and not in tokens. Classical rates and the entropy bonus "
        "of small networks are not defaults.",
        (
            "One critic for models whose tokenizers differ.",
            "A value that reads the question and the agent's own answer only: that is an "
            "individual critic, whatever its name.",
        ),
        (
            "algorithms/test_mappo.py::test_known_answer",
            "algorithms/test_mappo.py::test_a_value_that_knows_what_was_said_halves_the_variance",
            "algorithms/test_mappo.py::test_the_central_value_becomes_that_of_the_matrix_game",
        ),
        turns="joint steps",
    ),
    "happo": Said(
        ("2109.11251",),
        "a critic of all that was said",
        """
A as mappo; policies are updated one after another, in random order
M_t = product over turns u of the policies that were updated of pi_new(u) / pi_anchor(u)
loss = -M_t w C(rho, A)
""",
        "`factor: before` and `ratio: geometric` are ours, and so is the clamp of M to [0.5, 2], "
        "which is on: over long utterances M is unbiased and of no use. Agents that share a policy "
        "are one block.",
        (
            "A trainer of this name without M, which is MAPPO in another order.",
            "A clip of 0.2 in the test of it, at which both orders end alike.",
        ),
        (
            "algorithms/test_happo.py::test_known_answers",
            "algorithms/test_happo.py::test_one_policy_is_exactly_mappo",
            "algorithms/test_happo.py::test_one_best_response_each_on_the_matrix_game",
        ),
        turns="joint steps",
        policies="two or more",
    ),
    "vdn": Said(
        ("1706.05296",),
        "its agent's utility before",
        """
Q = sum_i q_i;  y_t = r_t + gamma ((1 - lam) Q_{t+1} + lam y_{t+1}), the last y = r
critic: (Q - y)^2 + (v_i - stop(q_i))^2;  q_i after, v_i before what agent i said
A_i = q_i - v_i, and with eta < 1: eta A_i + (1 - eta) (y - sum v);  normalised by agent
""",
        "The paper learns values and plays the best action. A policy gradient on its utilities for "
        "language models is our own formulation; no published one was found. The published form is "
        "`vdn_value`. On-policy the fit of a sum is the marginal advantage, so `vdn` and `qmix` "
        "have the same expected gradient here.",
        ("Expecting the contrast of VDN and QMIX from on-policy data.",),
        (
            "algorithms/test_mixing.py::test_known_target",
            "critics/test_mixers.py::test_known_team_value_and_advantages",
        ),
        turns="joint steps",
    ),
    "qmix": Said(
        ("1803.11485",),
        "its agent's utility before",
        """
s: the conversation, read by a model
h = ELU(sum_i q_i |W1_i(s)| + b1(s));  Q = h . |w2(s)| + b2(s)
A_i = f(q_i, q_-i; s) - f(v_i, q_-i; s);  all else as vdn
""",
        "As `vdn`: our own formulation of a policy gradient; the published form is `qmix_value`.",
        (
            "A mixer whose weights may be negative: the best joint action is no longer each one's "
            "best.",
        ),
        (
            "critics/test_mixers.py::test_the_team_is_never_worse_off_when_a_utility_rises",
            "critics/test_mixers.py::test_the_best_joint_action_is_every_agents_own_best",
        ),
        turns="joint steps",
    ),
    "vdn_value": Said(
        ("1706.05296",),
        "nothing: the best is played",
        """
each call samples `candidates`; the one of the largest q_i is played, any with probability epsilon
y = r + gamma (1 - done) Q_copy(s', each agent's best by the live q);  critic: (sum q - y)^2
distil: true    loss = -lp of the best candidate
""",
        "Utterances as actions are ours: a maximum over all of them is one over the candidates. "
        "The critic's optimizer is AdamW and its learning rate a key, where the paper has RMSprop.",
        ("A target that takes the largest q of the copy, and not the copy's q of the live best.",),
        (
            "critics/test_replay.py::test_the_two_step_game_on_utterances",
            "critics/test_replay.py::test_epsilon_falls_evenly_and_evaluations_play_the_best",
        ),
        turns="joint steps",
        proofs=("value_games",),
    ),
    "qmix_value": Said(
        ("1803.11485",),
        "nothing: the best is played",
        """
as vdn_value, with the monotone mix of qmix in place of the sum
""",
        "As `vdn_value`. A monotone mix does not fit every game: XOR is beyond it.",
        ("As `vdn_value`.",),
        ("critics/test_replay.py::test_the_two_step_game_on_utterances",),
        turns="joint steps",
        proofs=("value_games",),
    ),
    "at_grpo": Said(
        ("2510.11062",),
        "candidates of the same call",
        """
A_t = (r_t - mean) / (std + 1e-6)         over candidates of one call: one world, agent and prompt
r_t: what the world paid the candidate in its own fork, the team's part and its own
""",
        "The weight of the team's part against the turn's own could not be verified in the paper; "
        "it is 1, and `alpha` of `rolecall.workflows.candidates:play_best` in a workflow of your "
        "own. The best candidate is played, and the first of equal ones. A proposal on which "
        "another agent decides is scored as if it were played (`propose_best`, in `tool_planner`).",
        (
            "A group index divided twice, which pools four problems in one group.",
            "Worlds replaced by the first agent's winner before the second agent is scored: all "
            "its rewards are equal.",
            "Groups by turn number without equal states.",
        ),
        (
            "algorithms/test_at_grpo.py::test_known_answer",
            "algorithms/test_at_grpo.py::test_nobody_is_compared_across_points",
            "workflows/test_candidates.py::test_the_world_goes_on_from_the_played_child_not_from_a_second_step",
        ),
    ),
    "counterfactual": Said(
        ("1705.08926",),
        "replays without the turn",
        """
A_t = G(e) - mean of G over replays in which the turn says something else, same seeds; + r_t
G = R and what the agent's turns were paid by the workflow or the world, which is not in r_t then
turns without a replay: as rloo;  scale: true divides by the std of the agent's advantages
""",
        "After COMA, which has a central critic in place of replays. Ours needs no critic and "
        "costs replays; `baseline: same` estimates COMA's marginal. It is unbiased and not always "
        "of lower variance: both variances are metrics.",
        ("A replay that keeps what later agents said, which measures a world that cannot happen.",),
        (
            "algorithms/test_counterfactual.py::test_known_answers",
            "algorithms/test_counterfactual.py::test_every_baseline_is_unbiased_and_not_every_one_lowers_the_variance",
        ),
    ),
    "dpo": Said(
        ("2305.18290",),
        "a worse answer to the same prompt",
        """
loss = -log sigmoid(beta ((lp_w - ref_w) - (lp_l - ref_l)))     log-probs summed over the turn
`loss_type: ipo`: (margin of the turns' mean log-ratios - 1 / (2 beta))^2 (2310.12036)
`reference_free` leaves out both ref
mean over the pairs of the step; `pair_up` says which siblings are paired, never two of equal score
or of the same words; candidates are paired within their call, other answers over attempts
""",
        "None known. Loss and gradient agree with a public implementation's.",
        (
            "A reference in training mode, whose dropout is noise in the loss.",
            "Prompt tokens in the sums.",
            "Best and worst of different prompts as a pair.",
            "An empty data set reported as a success.",
        ),
        (
            "algorithms/test_dpo.py::test_known_answers",
            "algorithms/test_dpo.py::test_answers_to_different_prompts_are_never_paired",
            "algorithms/test_dpo_and_trl.py::test_loss_and_gradient_agree_with_trl",
        ),
    ),
    "read": Said(
        ("2405.14314",),
        "nothing: what adds too little is sent back",
        """
A_i = Q(s, u_1..u_i) - Q(s, u_1..u_(i-1))      Q(s) = V(s), so the A_i add up to Q(s, u) - V(s)
refine: while A_i < epsilon, at most `max_refine` times, ask again with the proposal and its score
critic: squared error of every prefix's Q against the episode's return
`train`: loss = -sum of min(exp(A / beta), 20) lp over the tokens of played turns / their number
""",
        "Mode S is any workflow, speaker by speaker. Mode J is a workflow in which one planner "
        "says what all shall do (`single`, `multi_turn`): it is the only speaker, so its A is that "
        "of the joint plan, Q(s, u) - V(s). There is no option for it. Agents that speak at once "
        "are judged one by one, each as if it spoke first: nobody knows who else will speak before "
        "a call is judged, so their proposals are never judged together. Training the model is "
        "ours, and so are three refinements and `beta` 1; by default the agents' weights stay. "
        "The critic's loss is Huber's, which is the square up to ten spreads.",
        (
            "Refused proposals that count as played, in the transcript or in the return.",
            "A loop that asks until the critic is content: before it has learned, it never is.",
        ),
        (
            "algorithms/test_read.py::test_the_critic_learns_what_each_speaker_adds_to_the_matrix_game",
            "algorithms/test_read.py::"
            "test_a_planner_who_speaks_for_all_is_judged_by_the_joint_plan",
            "algorithms/test_read.py::test_known_weights",
            "algorithms/test_read.py::test_a_proposal_that_adds_too_little_is_sent_back_with_its_score",
        ),
        proofs=("refined_cooks",),
    ),
    "ma_airl": Said(
        ("1907.13220", "1710.11248"),
        "the agent's own turns at the task",
        """
f = a scorer of each agent on what a frozen model makes of (prompt, utterance)
    with `shaping` gamma: + gamma h(s') - h(s), h on the prompt s; h(s') = 0 after the last turn
log pi = mean log-prob of the utterance's tokens            D = exp f / (exp f + pi)
r_t = log D - log(1 - D) = f - log pi, within +-5            A_t: drmas on r_t and penalties
neither R nor what the workflow or the world paid for a turn is read
`inner`: another algorithm's A_t, loss and critic on the same r_t
discriminator loss = mean -log D over experts' turns + mean -log(1 - D) over the agent's
""",
        "The scorers are two layers on mean hidden states of prompt and utterance, and log pi is a "
        "mean: both are ours, for language. The shaping term is an option, and there is no cloning "
        "beforehand; train `sft` on the same file first. While f knows little, `logit` pays mostly "
        "-log pi, which is surprise: with few steps of the scorers write `reward: raw`, as the "
        "recipe ma_airl_math does. One step of the scorers a step, half experts' turns, "
        "with those of the three steps before, whose log-probs are not computed again. `inner` may "
        "be any algorithm that trains on rewards of played turns: the group-relative ones, `ppo` "
        "and its kin with a value head, `mappo` and `happo` with a critic of the whole "
        "conversation (2002.10525 has one that attends over agents; a language model that reads "
        "what all of them said does). Those that compare candidates, filter tasks, replay episodes "
        "or train on rows are refused, and so are learner ranks: the scorers read the policy's "
        "model.",
        (
            "The sum of log-probs of a long utterance, which swamps the score.",
            "The raw score as the reward where agents compete: the policy's entropy is no part of "
            "it, so a policy that says one thing alone is paid best.",
            "The world's outcome added to what is learned.",
        ),
        (
            "algorithms/test_ma_airl.py::test_known_rewards",
            "algorithms/test_ma_airl.py::test_a_policy_comes_to_say_what_the_expert_says",
            "algorithms/test_ma_airl.py::test_a_saved_one_goes_on_bit_for_bit",
            "algorithms/test_ma_airl_inner.py::"
            "test_group_relative_credit_of_what_the_discriminator_pays",
            "algorithms/test_ma_airl_inner.py::"
            "test_ppo_chains_what_the_discriminator_pays_from_turn_to_turn",
            "algorithms/test_ma_airl_inner.py::"
            "test_mappo_and_its_critic_read_what_the_discriminator_pays",
        ),
    ),
    "spin": Said(
        ("2401.01335",),
        "the data set's answer to the same prompt",
        """
the loss of dpo; the better answer is a demonstration's, the worse one sampled by the policy
the reference is refreshed every `policies.NAME.reference_update_every` steps
""",
        "None known; the paper's constants could not be verified, so none is a default.",
        ("An own answer that equals the demonstration, paired all the same.",),
        (
            "algorithms/test_spin.py::test_right_after_the_reference_is_refreshed_the_loss_is_ln_2",
            "algorithms/test_spin.py::test_an_own_answer_that_is_the_data_sets_makes_no_pair",
        ),
    ),
    "sft": Said(
        (),
        "nothing: a threshold",
        """
loss = -sum of lp over the tokens of turns with s_t >= threshold / their number
a step below `step_threshold`, or a message or part with `weight: 0` in a file,
is shown and not imitated (2505.20023)
""",
        "Imitation of a file, or rejection sampling of one's own turns; it follows no single "
        "paper.",
        (
            "Masked tokens in the denominator.",
            "Headers of the chat template inside of the mask.",
            "A filter that reads a step's reward where the outcome was meant.",
        ),
        (
            "algorithms/test_sft.py::test_the_loss_is_the_mean_of_minus_log_p_over_the_imitated_ids",
            "algorithms/test_sft.py::test_a_wrong_step_is_in_neither_sum_nor_count",
            "algorithms/test_partly_imitated.py::"
            "test_loss_and_gradient_agree_with_transformers_over_two_agents",
            "runs/test_export_data_set.py::test_steps_that_the_world_marked_wrong_are_shown_and_not_trained",
            "algorithms/test_sft.py::test_loss_and_gradient_agree_with_transformers",
            "algorithms/test_dpo_and_trl.py::test_sft_agrees_with_trl",
        ),
    ),
}

// Written by `make page` from src/rolecall/watch/models.py: do not edit.

export interface Answers {
  Missing: Missing;
  RunRow: RunRow;
  Sweep: Sweep;
  RunList: RunList;
  AgentRow: AgentRow;
  Evaluation: Evaluation;
  Link: Link;
  Advice: Advice;
  Run: Run;
  Changes: Changes;
  GroupRow: GroupRow;
  Norm: Norm;
  Reason: Reason;
  Step: Step;
  Cell: Cell;
  BoardRow: BoardRow;
  BoardColumn: BoardColumn;
  Arithmetic: Arithmetic;
  Group: Group;
  Message: Message;
  ToolCall: ToolCall;
  CoachPass: CoachPass;
  CreditTerm: CreditTerm;
  Why: Why;
  Turn: Turn;
  Attempt: Attempt;
  Talk: Talk;
  Tokens: Tokens;
  SpikeToken: SpikeToken;
  SpikeAgent: SpikeAgent;
  SpikeTurn: SpikeTurn;
  Spikes: Spikes;
  Hit: Hit;
  FindLine: FindLine;
  TaskAttempts: TaskAttempts;
  TaskHistory: TaskHistory;
  PairRow: PairRow;
  Comparison: Comparison;
  PromptVersion: PromptVersion;
  AgentPrompts: AgentPrompts;
  Prompts: Prompts;
  CoachRow: CoachRow;
  CoachPage: CoachPage;
  ToolRow: ToolRow;
  ToolsPage: ToolsPage;
  RoleCell: RoleCell;
  Roles: Roles;
  Matrix: Matrix;
  Job: Job;
  Session: Session;
}
/**
 * Says what of a run cannot be shown, and why.
 */
export interface Missing {
  what: string;
  why: string;
}
/**
 * One run in the list of all.
 */
export interface RunRow {
  run: string;
  status: "running" | "finished" | "stopped" | "not started";
  algorithm: string;
  environment: string;
  agents: string[];
  step: number;
  steps: number;
  score: number | null;
  scores: (number | null)[];
  held_out: number | null;
  updated: number;
  error: string;
  sweep: string;
  differs: {
    [k: string]: string;
  };
  missing: Missing[];
}
/**
 * Runs whose configs differ in a few keys only.
 */
export interface Sweep {
  name: string;
  keys: string[];
  runs: string[];
}
/**
 * All runs of the folders that are watched.
 */
export interface RunList {
  runs: RunRow[];
  sweeps: Sweep[];
  total: number;
}
/**
 * One agent of a run's team.
 */
export interface AgentRow {
  agent: string;
  policy: string;
  base: string;
  is_trained: boolean;
  adapter: string;
}
/**
 * One evaluation of a run on tasks that it is not trained on.
 */
export interface Evaluation {
  step: number;
  when: string;
  split: string;
  headline: string;
  value: number | null;
  margin: number | null;
  scores: {
    [k: string]: number | null;
  };
}
/**
 * A place of the page that shows something.
 */
export interface Link {
  text: string;
  href: string;
}
/**
 * Says what is wrong, in a sentence, with the key to change and what shows it.
 */
export interface Advice {
  kind: string;
  severity: "note" | "warning" | "error";
  text: string;
  key: string;
  step: number;
  links: Link[];
}
/**
 * One run as a whole.
 */
export interface Run {
  row: RunRow;
  team: AgentRow[];
  workflow: string;
  config: string;
  steps: number[];
  series: {
    [k: string]: (number | null)[];
  };
  evaluations: Evaluation[];
  advice: Advice[];
  chapters: string[];
  cursor: string;
  kinds: string[];
  missing: Missing[];
}
/**
 * Holds what was written since a cursor.
 */
export interface Changes {
  cursor: string;
  is_new: boolean;
  status: "running" | "finished" | "stopped" | "not started";
  steps: number[];
  series: {
    [k: string]: (number | null)[];
  };
  evaluations: Evaluation[];
  in_flight: number;
}
/**
 * The attempts at one task in one step.
 */
export interface GroupRow {
  task: string;
  source: string;
  family: string;
  question: string;
  sign: "signal" | "no signal" | "failed" | "filtered" | "stale";
  attempts: number;
  scores: (number | null)[];
  advantages: {
    /**
     * @minItems 2
     * @maxItems 2
     */
    [k: string]: [number, number];
  };
}
/**
 * Gradient norms of one optimizer step of one policy.
 */
export interface Norm {
  policy: string;
  optimizer_step: number;
  grad_norm: number | null;
  agents: {
    [k: string]: number | null;
  };
  lr: number | null;
  kl: number | null;
  tokens: number;
  skipped: string;
}
/**
 * Why turns or episodes of a step are not as they should be, with examples.
 */
export interface Reason {
  name: string;
  text: string;
  count: number;
  of: number;
  links: Link[];
}
/**
 * One step of training.
 */
export interface Step {
  run: string;
  step: number;
  steps: number[];
  metrics: {
    [k: string]: number | null;
  };
  groups: GroupRow[];
  norms: Norm[];
  reasons: Reason[];
  advice: Advice[];
  missing: Missing[];
}
/**
 * One turn on the board of a group.
 */
export interface Cell {
  turn: string;
  agent: string;
  text: string;
  advantage: number | null;
  valid: boolean;
  finish: string;
  trained: boolean;
  chosen: boolean;
  is_new: boolean;
}
/**
 * One joint step of all attempts of a group.
 */
export interface BoardRow {
  path: string;
  cells: (Cell | null)[];
  is_parting: boolean;
}
/**
 * One attempt of a group.
 */
export interface BoardColumn {
  episode: string;
  attempt: number;
  score: number | null;
  rewards: {
    [k: string]: number;
  };
  error: string;
}
/**
 * The credit of one agent in a group, in words and numbers.
 */
export interface Arithmetic {
  agent: string;
  sentences: string[];
  samples: [string, number][];
}
/**
 * The board of one group: attempts are columns, joint steps are rows.
 */
export interface Group {
  run: string;
  step: number;
  task: string;
  source: string;
  question: string;
  reference: string;
  sign: "signal" | "no signal" | "failed" | "filtered" | "stale";
  why: string;
  columns: BoardColumn[];
  rows: BoardRow[];
  arithmetic: Arithmetic[];
}
/**
 * One message that an agent was shown.
 */
export interface Message {
  role: string;
  content: string;
}
/**
 * One call of a tool, with what came back.
 */
export interface ToolCall {
  name: string;
  arguments: string;
  result: string;
  status: string;
  seconds: number | null;
}
/**
 * Holds what a coach said of a turn.
 */
export interface CoachPass {
  name: string;
  score: number;
  reasoning: string;
  cost_usd: number | null;
}
/**
 * One term of a turn's credit.
 */
export interface CreditTerm {
  kind: string;
  sentence: string;
  formula: string;
}
/**
 * Explains how a turn came by its advantage.
 */
export interface Why {
  outcome: number;
  rewards: {
    [k: string]: number;
  };
  advantage: number | null;
  first: number | null;
  last: number | null;
  weight: number;
  terms: CreditTerm[];
  samples: [string, string, number][];
  note: string;
}
/**
 * One turn of a conversation.
 */
export interface Turn {
  turn: string;
  agent: string;
  policy: string;
  path: string;
  lane: number;
  column: number;
  parents: string[];
  text: string;
  thinking: string;
  messages: Message[];
  finish: string;
  valid: boolean;
  trained: boolean;
  chosen: boolean;
  candidate: number | null;
  tokens: number;
  prompt_tokens: number;
  temperature: number | null;
  weight: number | null;
  began_s: number | null;
  ended_s: number | null;
  version: number | null;
  verdict: string;
  tools: ToolCall[];
  coach: CoachPass[];
  coach_error: string;
  why: Why;
  raw: {
    [k: string]: string;
  };
}
/**
 * Another attempt at the same task, to go to.
 */
export interface Attempt {
  episode: string;
  attempt: number;
  score: number | null;
}
/**
 * One episode: graph, transcript, and why each turn got its credit.
 */
export interface Talk {
  run: string;
  step: number;
  split: string;
  episode: string;
  attempt: number;
  task: string;
  source: string;
  question: string;
  reference: string;
  answer: string;
  score: number | null;
  rewards: {
    [k: string]: number;
  };
  metrics: {
    [k: string]: number | null;
  };
  error: string;
  agents: string[];
  turns: Turn[];
  attempts: Attempt[];
  missing: Missing[];
}
/**
 * The sampled tokens of a turn, column by column; a column that is not recorded is None.
 */
export interface Tokens {
  turn: string;
  ids: number[];
  texts: string[];
  text_note: string;
  advantages: (number | null)[] | null;
  logprobs: (number | null)[] | null;
  learner_logprobs: (number | null)[] | null;
  entropies: (number | null)[] | null;
  clipped: boolean[] | null;
  versions: number[] | null;
  ref_logprobs: (number | null)[] | null;
  values: (number | null)[] | null;
  returns: (number | null)[] | null;
}
/**
 * One token, by how much it moves the gradient.
 */
export interface SpikeToken {
  turn: string;
  episode: string;
  agent: string;
  policy: string;
  optimizer_step: number;
  token: number;
  text: string;
  before: string;
  after: string;
  logprob: number;
  advantage: number;
  ratio: number;
  estimate: number;
  share: number;
  measured: number | null;
}
/**
 * Says how much of an optimizer step's estimate is one agent's.
 */
export interface SpikeAgent {
  agent: string;
  policy: string;
  optimizer_step: number;
  turns: number;
  tokens: number;
  estimate: number;
  share: number;
  grad_norm: number | null;
}
/**
 * Says how much of an optimizer step's estimate is one turn's.
 */
export interface SpikeTurn {
  turn: string;
  episode: string;
  agent: string;
  policy: string;
  optimizer_step: number;
  tokens: number;
  advantage: number;
  estimate: number;
  share: number;
}
/**
 * Says where the gradient of a step came from: agents, turns, tokens.
 */
export interface Spikes {
  run: string;
  step: number;
  steps: number[];
  norms: Norm[];
  median: {
    [k: string]: number | null;
  };
  agents: SpikeAgent[];
  turns: SpikeTurn[];
  tokens: SpikeToken[];
  of_tokens: number;
  note: string;
  job: string;
  missing: Missing[];
}
/**
 * A turn that a search names.
 */
export interface Hit {
  step: number;
  episode: string;
  turn: string;
  agent: string;
  task: string;
  score: number | null;
  advantage: number | null;
  valid: boolean;
  finish: string;
  snippet: string;
  ranges: [number, number][];
}
/**
 * One line of the stream of a search; the last one has `is_end`.
 */
export interface FindLine {
  hit?: Hit | null;
  searched_steps?: number;
  of_steps?: number;
  matches?: number;
  is_end?: boolean;
  facets?: {
    [k: string]: {
      [k: string]: number;
    };
  };
  error?: string;
}
/**
 * All attempts at one task in one step.
 */
export interface TaskAttempts {
  step: number;
  attempts: Attempt[];
  mean: number | null;
  turns: Cell[][];
}
/**
 * One task through the training.
 */
export interface TaskHistory {
  run: string;
  task: string;
  source: string;
  question: string;
  reference: string;
  steps: TaskAttempts[];
  all_steps: number[];
}
/**
 * One task in two runs.
 */
export interface PairRow {
  task: string;
  source: string;
  first: number | null;
  second: number | null;
  difference: number | null;
}
/**
 * Two runs beside one another.
 */
export interface Comparison {
  runs: string[];
  differs: [string, string, string][];
  same: number;
  series: {
    [k: string]: [number[], (number | null)[]][];
  };
  pairs: PairRow[];
  of_pairs: number;
  mean: number | null;
  margin: number | null;
  note: string;
}
/**
 * The system or first message of an agent, from one step on.
 */
export interface PromptVersion {
  hash: string;
  steps: number[];
  count: number;
  text: string;
  example: Link;
}
/**
 * Shows how the messages to an agent have changed.
 */
export interface AgentPrompts {
  agent: string;
  role: string;
  versions: PromptVersion[];
  more: number;
}
/**
 * System and first messages of all agents.
 */
export interface Prompts {
  run: string;
  agents: AgentPrompts[];
  searched_steps: number;
  of_steps: number;
}
/**
 * Holds what a coach said of one turn, in a list.
 */
export interface CoachRow {
  step: number;
  turn: string;
  episode: string;
  agent: string;
  score: number;
  hindsight: number | null;
  outcome: number | null;
  reasoning: string;
}
/**
 * Shows what coaches said, and whether that goes with the outcome.
 */
export interface CoachPage {
  run: string;
  step: number;
  steps: number[];
  correlation: {
    [k: string]: number | null;
  };
  all_steps: number[];
  by_step: {
    [k: string]: (number | null)[];
  };
  rows: CoachRow[];
  failures: [string, string][];
  missing: Missing[];
}
/**
 * Shows how one tool was used by one agent in one step.
 */
export interface ToolRow {
  agent: string;
  tool: string;
  calls: number;
  errors: number;
  timed_out: number;
  refused: number;
  seconds: number | null;
  advantage_with: number | null;
  advantage_without: number | null;
  examples: Link[];
}
/**
 * Tools and the sandbox in one step.
 */
export interface ToolsPage {
  run: string;
  step: number;
  steps: number[];
  rows: ToolRow[];
  all_steps: number[];
  by_step: {
    [k: string]: (number | null)[];
  };
  missing: Missing[];
}
/**
 * Turns in which an agent gave a verdict, by whether the team was right.
 */
export interface RoleCell {
  agent: string;
  verdict: string;
  right: number;
  wrong: number;
  links_right: Link[];
  links_wrong: Link[];
}
/**
 * Shows what verdicts say, and whether they are true.
 */
export interface Roles {
  run: string;
  step: number;
  steps: number[];
  cells: RoleCell[];
  by_step: [number, string, number][];
}
/**
 * Roles of one step played with roles of another, as `rolecall crossplay` wrote it.
 */
export interface Matrix {
  run: string;
  name: string;
  names: string[];
  rows: string[];
  columns: string[];
  values: (number | null)[][];
  margins: (number | null)[][];
  note: string;
  missing: Missing[];
}
/**
 * A process that computes with the run's weights, started from the page.
 */
export interface Job {
  job: string;
  kind: "whatif" | "blame" | "spikes";
  run: string;
  status: "running" | "done" | "failed" | "cancelled";
  seconds: number;
  command: string;
  error: string;
  result: {
    [k: string]: unknown;
  } | null;
}
/**
 * Says what this server allows.
 */
export interface Session {
  version: string;
  allows_jobs: boolean;
  folders: string[];
}

// Shows where the gradient of a step came from: optimizer steps, agents, turns, tokens.
import type { JSX } from "preact";
import type { ViewProps } from "../app";
import type { SpikeAgent, Spikes, SpikeToken, SpikeTurn } from "../api";
import { useAnswer, writeRequest } from "../fetching";
import { count, showNumber, showShare, showSigned } from "../format";
import { Badge, Empty, MissingList, Section, Signed, Waiting } from "../parts/basics";
import { StartJob, writePath } from "../parts/job";
import { Norms } from "../parts/norms";
import { StepPicker } from "../parts/steps";
import { Table, type Column } from "../parts/table";
import { Text } from "../parts/text";
import { writeHref } from "../router";

interface Chosen {
  policy: string | null;
  optimizer: string | null;
  agent: string | null;
}

export function SpikesView({ query, run, session }: ViewProps): JSX.Element {
  const request = writeRequest("spikes", { run, step: query.get("step") });
  const { data, error, reload } = useAnswer("Spikes", request);
  if (!data) return <Waiting error={error} what="the gradient of the step" />;
  const steps = data.step;
  const chosen: Chosen = {
    policy: query.get("policy"),
    optimizer: query.get("optimizer"),
    agent: query.get("agent"),
  };
  const link = (changes: Partial<Chosen>): string =>
    writeHref("spikes", { run, step: data.step, ...chosen, ...changes });
  const agents = data.agents.filter((each) => isChosen(each, { ...chosen, agent: null }));
  const turns = data.turns.filter((each) => isChosen(each, chosen));
  const tokens = data.tokens.filter((each) => isChosen(each, chosen));
  return (
    <>
      <div class="heading">
        <h1>Spikes of step {steps}</h1>
        <StepPicker step={data.step} steps={data.steps} />
        <a href={writeHref("step", { run, step: data.step })}>the step</a>
      </div>
      <p class="quiet"><Text>{data.note}</Text></p>
      <MissingList missing={data.missing} />
      <Section title="Optimizer steps" note="a row shows what it came from">
        <Norms
          norms={data.norms}
          median={data.median}
          href={(norm) => link({ policy: norm.policy, optimizer: String(norm.optimizer_step), agent: null })}
        />
      </Section>
      <ChosenBadges chosen={chosen} href={link} />
      <Section title="Agents">
        <Table
          label="Agents"
          rows={agents}
          columns={AGENTS}
          href={(row) =>
            link({ policy: row.policy, optimizer: String(row.optimizer_step), agent: row.agent })
          }
        />
      </Section>
      <Section title="Turns" note="those with the largest estimates">
        {turns.length ? (
          <Table label="Turns" rows={turns} columns={TURNS} href={(row) => talkHref(data, row)} />
        ) : (
          <Empty>None of the {data.turns.length} largest turns is of what is chosen above.</Empty>
        )}
      </Section>
      <section aria-label="Tokens">
        <h2>
          Tokens
          <span class="note">
            {tokens.length} of {count(data.of_tokens, "token")}; a row opens the token
          </span>
          <StartJob
            session={session}
            body={{ kind: "spikes", run, step: data.step }}
            command={`rolecall spikes ${writePath(session, run)} --step ${data.step} --measure`}
            says="measure the largest 20"
            onDone={reload}
          />
        </h2>
        {tokens.length ? (
          <Table
            label="Tokens"
            rows={tokens}
            columns={tokens.some((each) => each.measured !== null) ? [...TOKENS, MEASURED] : TOKENS}
            href={(row) => talkHref(data, row)}
            tall
          />
        ) : (
          <Empty>None of the {data.tokens.length} largest tokens is of what is chosen above.</Empty>
        )}
      </section>
    </>
  );
}

type Row = { agent: string; policy: string; optimizer_step: number };

function isChosen(row: Row, chosen: Chosen): boolean {
  return (
    (chosen.policy === null || row.policy === chosen.policy) &&
    (chosen.optimizer === null || String(row.optimizer_step) === chosen.optimizer) &&
    (chosen.agent === null || row.agent === chosen.agent)
  );
}

function ChosenBadges(props: {
  chosen: Chosen;
  href: (changes: Partial<Chosen>) => string;
}): JSX.Element | null {
  const { policy, optimizer, agent } = props.chosen;
  if (policy === null && agent === null) return null;
  return (
    <p>
      Only <Badge kind="">policy <Text>{policy ?? "any"}</Text></Badge>{" "}
      <Badge kind="">optimizer step {optimizer ?? "any"}</Badge>{" "}
      {agent === null ? null : <Badge kind="">agent <Text>{agent}</Text></Badge>}{" "}
      <a href={props.href({ policy: null, optimizer: null, agent: null })}>show all</a>
    </p>
  );
}

function talkHref(spikes: Spikes, row: SpikeTurn | SpikeToken): string {
  return writeHref("talk", {
    run: spikes.run,
    step: spikes.step,
    episode: row.episode,
    turn: row.turn,
    panel: "tokens",
    token: "token" in row ? row.token : null,
  });
}

const AGENTS: Column<SpikeAgent>[] = [
  { name: "agent", width: "10em", show: (row) => <Text>{row.agent}</Text> },
  { name: "policy", width: "10em", show: (row) => <Text>{row.policy}</Text> },
  { name: "optimizer step", width: "8em", isNumber: true, show: (row) => row.optimizer_step || "–" },
  { name: "share", width: "6em", isNumber: true, show: (row) => showShare(row.share) },
  { name: "estimate", width: "8em", isNumber: true, show: (row) => showNumber(row.estimate) },
  { name: "norm", width: "8em", isNumber: true, show: (row) => showNumber(row.grad_norm, 4) },
  { name: "turns", width: "6em", isNumber: true, show: (row) => showNumber(row.turns) },
  { name: "tokens", width: "7em", isNumber: true, show: (row) => showNumber(row.tokens) },
];

const TURNS: Column<SpikeTurn>[] = [
  { name: "turn", width: "20em", show: (row) => <Text>{row.turn}</Text> },
  { name: "agent", width: "10em", show: (row) => <Text>{row.agent}</Text> },
  { name: "advantage", width: "8em", isNumber: true, show: (row) => <Signed value={row.advantage} /> },
  { name: "share", width: "6em", isNumber: true, show: (row) => showShare(row.share) },
  { name: "estimate", width: "8em", isNumber: true, show: (row) => showNumber(row.estimate) },
  { name: "tokens", width: "6em", isNumber: true, show: (row) => showNumber(row.tokens) },
];

const TOKENS: Column<SpikeToken>[] = [
  { name: "token", width: "18em", show: (row) => <Around token={row} /> },
  { name: "agent", width: "8em", show: (row) => <Text>{row.agent}</Text> },
  { name: "estimate", width: "7em", isNumber: true, show: (row) => showNumber(row.estimate) },
  { name: "share", width: "5em", isNumber: true, show: (row) => showShare(row.share) },
  { name: "p", width: "6em", isNumber: true, show: (row) => showNumber(Math.exp(row.logprob), 4) },
  { name: "advantage", width: "7em", isNumber: true, show: (row) => showSigned(row.advantage) },
  { name: "ratio", width: "6em", isNumber: true, show: (row) => showNumber(row.ratio) },
  { name: "turn", width: "18em", show: (row) => <Text>{row.turn}</Text> },
];

const MEASURED: Column<SpikeToken> = {
  name: "measured",
  width: "8em",
  isNumber: true,
  show: (row) => showNumber(row.measured),
};

/** Shows the token inside of the text around it. */
function Around({ token }: { token: SpikeToken }): JSX.Element {
  return (
    <>
      <span class="quiet"><Text>{token.before.slice(-12)}</Text></span>
      <mark><Text>{token.text || "∅"}</Text></mark>
      <span class="quiet"><Text>{token.after}</Text></span>
    </>
  );
}

// Shows one conversation: its graph, its transcript, and beside it what is known of the chosen turn.
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { ViewProps } from "../app";
import type { Talk, Turn } from "../api";
import { useAnswer, writeRequest } from "../fetching";
import { showNumber, showSeconds, showSigned } from "../format";
import { useKeys } from "../keys";
import { Badge, Choice, Empty, Facts, MissingList, Section, Signed, Waiting } from "../parts/basics";
import { Graph, nameTurn } from "../parts/graph";
import { Block, Text } from "../parts/text";
import { TokenPanel } from "../parts/tokens";
import { WhyPanel } from "../parts/why";
import { navigate, setQuery, writeHref } from "../router";
import { cutTurn, Flags } from "./group";

export function TalkView({ query, run }: ViewProps): JSX.Element {
  const turn = query.get("turn") ?? "";
  const episode = query.get("episode") ?? cutTurn(turn);
  const split = query.get("split");
  const { data, error } = useAnswer(
    "Talk",
    writeRequest("talk", { run, step: query.get("step"), episode, split }),
  );
  if (!data) return <Waiting error={error} what="the conversation" />;
  return <Conversation talk={data} query={query} />;
}

function Conversation({ talk, query }: { talk: Talk; query: URLSearchParams }): JSX.Element {
  const wanted = query.get("turn");
  const index = Math.max(0, talk.turns.findIndex((turn) => turn.turn === wanted));
  const selected = talk.turns[index];
  useTalkKeys(talk, index);
  useEffect(() => {
    if (wanted) showTurn(wanted);
  }, [wanted, talk.episode]);
  const href = (turn: Turn): string => {
    const copy = new URLSearchParams(query);
    copy.set("turn", turn.turn);
    copy.delete("token");
    return `talk?${copy.toString()}`;
  };
  return (
    <>
      <div class="heading">
        <h1><Text>{talk.task}</Text> <span class="quiet">attempt {talk.attempt}</span></h1>
        <Attempts talk={talk} query={query} />
        {talk.split === "train" ? (
          <>
            <a href={writeHref("group", { run: talk.run, step: talk.step, task: talk.task, source: talk.source })}>
              its group
            </a>
            <a href={writeHref("step", { run: talk.run, step: talk.step })}>step {talk.step}</a>
          </>
        ) : (
          <Badge kind="">{talk.split} after step {talk.step}</Badge>
        )}
      </div>
      <TalkFacts talk={talk} />
      {talk.error ? <p class="error"><Text>{talk.error}</Text></p> : null}
      <MissingList missing={talk.missing} />
      <Graph talk={talk} selected={selected?.turn ?? ""} href={href} />
      <div class="talk">
        <Section title="Transcript">
          <details class="question" open>
            <summary>Question</summary>
            <Block text={talk.question} />
          </details>
          {talk.turns.map((turn, place) => (
            <TurnCard
              turn={turn}
              number={place + 1}
              isSelected={place === index}
              href={href(turn)}
            />
          ))}
          {talk.turns.length ? null : <Empty>No turn of this episode was recorded.</Empty>}
          {talk.reference ? (
            <div class="reference"><h3>Reference</h3><Block text={talk.reference} /></div>
          ) : null}
        </Section>
        {selected ? <TurnPanel talk={talk} turn={selected} number={index + 1} query={query} /> : null}
      </div>
    </>
  );
}

function useTalkKeys(talk: Talk, index: number): void {
  const selected = talk.turns[index];
  const go = (to: number): void => {
    const turn = talk.turns[to];
    if (turn) setQuery({ turn: turn.turn, token: null });
  };
  const goAttempt = (by: number): void => {
    const place = talk.attempts.findIndex((each) => each.episode === talk.episode);
    const next = talk.attempts[place + by];
    if (place >= 0 && next) openAttempt(next.episode, selected);
  };
  useKeys([
    { key: "j", says: "next turn", run: () => go(index + 1) },
    { key: "k", says: "turn before", run: () => go(index - 1) },
    { key: "h", says: "attempt before", run: () => goAttempt(-1) },
    { key: "l", says: "attempt after", run: () => goAttempt(1) },
    { key: "w", says: "why the turn got its advantage", run: () => setQuery({ panel: null }) },
    { key: "t", says: "tokens of the turn", run: () => setQuery({ panel: "tokens" }) },
    {
      key: "e",
      says: "what if the turn had said something else",
      run: () => selected && navigate(editHref(talk, selected)),
    },
  ]);
}

/** Opens another attempt at the turn of the same path. */
function openAttempt(episode: string, selected: Turn | undefined): void {
  const turn = selected ? episode + selected.turn.slice(cutTurn(selected.turn).length) : null;
  setQuery({ episode, turn, token: null });
}

function editHref(talk: Talk, turn: Turn): string {
  return writeHref("whatif", { run: talk.run, step: talk.step, turn: turn.turn });
}

function showTurn(name: string): void {
  const card = [...document.querySelectorAll("article[data-turn]")].find(
    (element) => element.getAttribute("data-turn") === name,
  );
  card?.scrollIntoView({ block: "nearest" });
}

function Attempts({ talk, query }: { talk: Talk; query: URLSearchParams }): JSX.Element | null {
  if (talk.attempts.length < 2) return null;
  return (
    <nav class="attempts" aria-label="Attempts">
      {talk.attempts.map((each) => {
        const copy = new URLSearchParams(query);
        copy.set("episode", each.episode);
        copy.delete("turn");
        copy.delete("token");
        const isThis = each.episode === talk.episode;
        return (
          <a
            href={`talk?${copy.toString()}`}
            aria-current={isThis ? "true" : undefined}
            aria-label={`attempt ${each.attempt}, score ${showNumber(each.score, 2)}`}
            title={`attempt ${each.attempt}`}
          >
            {showNumber(each.score, 2)}
          </a>
        );
      })}
    </nav>
  );
}

function TalkFacts({ talk }: { talk: Talk }): JSX.Element {
  const measures = Object.entries({ ...talk.rewards, ...talk.metrics });
  return (
    <Facts
      facts={[
        ["score", showNumber(talk.score)],
        ...measures.map(([name, value]) => [<Text>{name}</Text>, showNumber(value)] as never),
        ["source", <Text>{talk.source}</Text>],
        ["episode", <Text>{talk.episode}</Text>],
      ]}
    />
  );
}

function TurnCard(props: {
  turn: Turn;
  number: number;
  isSelected: boolean;
  href: string;
}): JSX.Element {
  const { turn } = props;
  return (
    <article
      class={`turn ${props.isSelected ? "selected" : ""} lane-${turn.lane % 6}`}
      data-turn={turn.turn}
      aria-label={nameTurn(turn, props.number)}
      onClick={(event) => {
        if ((event.target as Element).closest("a, summary, button")) return;
        if (!window.getSelection()?.toString()) setQuery({ turn: turn.turn, token: null });
      }}
    >
      <header>
        <a href={props.href} class="agent" aria-label={`choose ${nameTurn(turn, props.number)}`}>
          <Text>{turn.agent}</Text>
        </a>
        <Signed value={turn.why.advantage} />
        <span class="quiet"><Text>{turn.path}</Text></span>
        <Flags {...turn} />
        {turn.verdict ? <Badge kind="">says <Text>{turn.verdict}</Text></Badge> : null}
        {turn.candidate !== null ? <Badge kind="">candidate {turn.candidate}</Badge> : null}
        <span class="quiet end">{turn.tokens} tokens{showTimes(turn)}</span>
      </header>
      {turn.thinking ? (
        <details class="thinking">
          <summary>thinking</summary>
          <Block text={turn.thinking} />
        </details>
      ) : null}
      <Block text={turn.text} />
      <ToolCalls turn={turn} />
    </article>
  );
}

function showTimes(turn: Turn): string {
  if (turn.began_s === null || turn.ended_s === null) return "";
  return `, ${showSeconds(turn.ended_s - turn.began_s)} from ${showSeconds(turn.began_s)}`;
}

function ToolCalls({ turn }: { turn: Turn }): JSX.Element | null {
  if (!turn.tools.length) return null;
  return (
    <ul class="calls" aria-label="Calls of tools">
      {turn.tools.map((call) => (
        <li>
          <div>
            <b><Text>{call.name}</Text></b>{" "}
            <Badge kind={call.status === "ok" ? "" : "failed"}>{call.status}</Badge>
            <span class="quiet"> {showSeconds(call.seconds)}</span>
          </div>
          <Block text={call.arguments} isCode />
          <Block text={call.result} isCode />
        </li>
      ))}
    </ul>
  );
}

const PANELS: [string, string][] = [
  ["", "why"], ["tokens", "tokens"], ["prompt", "prompt"], ["coach", "coach"], ["raw", "raw"],
]; // prettier-ignore

function TurnPanel(props: {
  talk: Talk;
  turn: Turn;
  number: number;
  query: URLSearchParams;
}): JSX.Element {
  const { talk, turn, query } = props;
  const panel = query.get("panel") ?? "";
  const panels = PANELS.filter(([name]) => name !== "coach" || turn.coach.length || turn.coach_error);
  return (
    <aside aria-label="The chosen turn">
      <h2>
        <Text>{turn.agent}</Text> <span class="quiet">turn {props.number}</span>
        <a class="button small" href={editHref(talk, turn)}>what if …</a>
      </h2>
      <Choice
        label="what is shown of the turn"
        value={panel}
        options={panels}
        onChoose={(value) => setQuery({ panel: value || null }, "push")}
      />
      <div class="panel">
        {panel === "tokens" ? (
          <TokenPanel run={talk.run} step={talk.step} split={talk.split} turn={turn.turn} query={query} />
        ) : panel === "prompt" ? (
          <Prompt turn={turn} />
        ) : panel === "coach" ? (
          <Coach turn={turn} />
        ) : panel === "raw" ? (
          <Raw turn={turn} />
        ) : (
          <WhyPanel talk={talk} turn={turn} />
        )}
      </div>
    </aside>
  );
}

function Prompt({ turn }: { turn: Turn }): JSX.Element {
  return (
    <>
      <p class="quiet">{turn.prompt_tokens} tokens, as the agent was shown them</p>
      {turn.messages.map((message) => (
        <div class="message">
          <h3><Text>{message.role}</Text></h3>
          <Block text={message.content} />
        </div>
      ))}
    </>
  );
}

function Coach({ turn }: { turn: Turn }): JSX.Element {
  return (
    <>
      {turn.coach_error ? <p class="error"><Text>{turn.coach_error}</Text></p> : null}
      {turn.coach.map((pass) => (
        <div class="message">
          <h3>
            <Text>{pass.name}</Text> <span class="number">{showNumber(pass.score, 1)} of 10</span>
            {pass.cost_usd === null ? null : <span class="quiet"> {showNumber(pass.cost_usd, 4)} USD</span>}
          </h3>
          <Block text={pass.reasoning} />
        </div>
      ))}
    </>
  );
}

function Raw({ turn }: { turn: Turn }): JSX.Element {
  const notes = Object.entries(turn.raw);
  return (
    <>
      <Facts
        facts={[
          ["turn", <Text>{turn.turn}</Text>],
          ["policy", <Text>{turn.policy}</Text>],
          ["finish", <Text>{turn.finish}</Text>],
          ["temperature", showNumber(turn.temperature)],
          ["weight", showNumber(turn.weight)],
          ["version", turn.version === null ? "–" : String(turn.version)],
          ["advantage", showSigned(turn.why.advantage, 5)],
        ]}
      />
      {notes.map(([name, value]) => (
        <div class="message">
          <h3><Text>{name}</Text></h3>
          <Block text={value} isCode />
        </div>
      ))}
      <details>
        <summary>all of the turn, as JSON</summary>
        <Block text={JSON.stringify(turn, null, 1)} isCode />
      </details>
    </>
  );
}

// Asks what an episode would have come to, had one turn said something else.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { ViewProps } from "../app";
import type { Job, Turn } from "../api";
import { useAnswer, writeRequest } from "../fetching";
import { showNumber, showSigned } from "../format";
import { Choice, Empty, Section, Signed, Waiting } from "../parts/basics";
import { StartJob, writePath, type JobBody } from "../parts/job";
import { Block, Text } from "../parts/text";
import { setQuery, writeHref } from "../router";
import { cutTurn } from "./group";

export function WhatifView({ query, run, session }: ViewProps): JSX.Element {
  const turn = query.get("turn") ?? "";
  const request = writeRequest("talk", { run, step: query.get("step"), episode: cutTurn(turn) });
  const { data, error } = useAnswer("Talk", turn ? request : null);
  if (!turn) {
    return (
      <Empty>
        Choose a turn first: press <kbd>e</kbd> in a conversation. <a href={writeHref("find", { run })}>Find one</a>
      </Empty>
    );
  }
  if (!data) return <Waiting error={error} what="the conversation" />;
  const said = data.turns.find((each) => each.turn === turn);
  if (!said) return <Empty>The episode has no turn <Text>{turn}</Text>.</Empty>;
  return <Form key={turn} query={query} run={run} session={session} said={said} step={data.step} />;
}

function Form(props: ViewProps & { said: Turn; step: number }): JSX.Element {
  const { query, run, said, step, session } = props;
  const isBlame = query.get("ask") === "blame";
  const isAnew = query.get("say") === "anew";
  const [text, setText] = useState(said.text);
  const [draws, setDraws] = useState(16);
  const [checkpoint, setCheckpoint] = useState("");
  const episode = cutTurn(said.turn);
  const path = quote(writePath(session, run));
  const options = checkpoint && !isBlame ? ` --checkpoint ${checkpoint}` : "";
  const command = isBlame
    ? `rolecall blame ${path} --episode ${quote(episode)} --step ${step} --draws ${draws}`
    : `rolecall whatif ${path} --turn ${quote(said.turn)} --step ${step} --draws ${draws}${options}` +
      (isAnew ? "" : ` --say ${quote(text)}`);
  const body: JobBody = isBlame
    ? { kind: "blame", run, step, episode, draws }
    : { kind: "whatif", run, step, turn: said.turn, say: isAnew ? null : text, draws, checkpoint: checkpoint || null };
  return (
    <>
      <div class="heading">
        <h1>What if <Text>{said.agent}</Text> had said something else?</h1>
        <a href={writeHref("talk", { run, step, episode, turn: said.turn })}>the conversation</a>
      </div>
      <Choice
        label="question"
        value={isBlame ? "blame" : isAnew ? "anew" : "text"}
        options={[["text", "other words"], ["anew", "sampled again"], ["blame", "which turn decided?"]]}
        onChoose={(value) =>
          setQuery({ ask: value === "blame" ? "blame" : null, say: value === "anew" ? "anew" : null })
        }
      />
      {isBlame || isAnew ? null : (
        <label class="edit">
          it says instead
          <textarea rows={8} maxLength={30000} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      <p class="choices">
        <label>
          draws{" "}
          <input
            type="number"
            min="2"
            max="1024"
            value={draws}
            onInput={(event) => setDraws(Number(event.currentTarget.value) || 16)}
          />
        </label>
        {isBlame ? null : (
          <label>
            checkpoint{" "}
            <input
              type="text"
              placeholder="what sampled it"
              value={checkpoint}
              onInput={(event) => setCheckpoint(event.currentTarget.value.trim())}
            />
          </label>
        )}
      </p>
      <StartJob key={body.kind} session={session} body={body} command={command} says="replay">
        {(job) => (job.kind === "blame" ? <BlameResult job={job} /> : <WhatifResult job={job} />)}
      </StartJob>
      {session && !session.allows_jobs ? (
        <p class="quiet">Started with <code>--what-if</code>, this page replays by itself.</p>
      ) : null}
      <Section title="What it said"><Block text={said.text} /></Section>
    </>
  );
}

function quote(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replace(/'/g, `'\\''`)}'`;
}

interface Estimate {
  mean: number;
  margin: number;
}

interface Spoken {
  path: string;
  agent: string;
  text: string;
}

interface WhatifAnswer {
  unchanged: Estimate;
  changed: Estimate;
  difference: Estimate;
  kept: string[];
  again: string[];
  draws: {
    unchanged: number | null;
    changed: number | null;
    unchanged_turns: Spoken[];
    changed_turns: Spoken[];
  }[];
  num_failed: number;
  weights: string;
  notes: string[];
}

function WhatifResult({ job }: { job: Job }): JSX.Element {
  const result = job.result as unknown as WhatifAnswer;
  const rows: [string, Estimate][] = [["as it was", result.unchanged], ["instead", result.changed]];
  return (
    <div class="result">
      <h2>
        <Signed value={result.difference.mean} digits={3} largest={1} /> ±{" "}
        {showNumber(result.difference.margin)}
        <span class="note">
          {Math.abs(result.difference.mean) > result.difference.margin ? "beyond chance" : "no difference beyond chance"}
        </span>
      </h2>
      <table class="plain">
        <tbody>
          {rows.map(([name, value]) => (
            <tr>
              <th scope="row">{name}</th>
              <td class="number">{showNumber(value.mean)} ± {showNumber(value.margin)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p>
        {result.kept.length} turns before it were kept, {result.again.length} after it sampled anew;{" "}
        {2 * result.draws.length} replays, of which {result.num_failed} failed, with <Text>{result.weights}</Text>
      </p>
      {result.notes.map((note) => <p class="flag"><Text>{note}</Text></p>)}
      {result.draws.filter((draw) => draw.changed_turns.length).map((draw, place) => (
        <details>
          <summary>
            draw {place + 1}: {showNumber(draw.unchanged)} as it was, {showNumber(draw.changed)} instead
          </summary>
          <div class="two">
            <Transcript title="as it was" turns={draw.unchanged_turns} />
            <Transcript title="instead" turns={draw.changed_turns} />
          </div>
        </details>
      ))}
    </div>
  );
}

function Transcript({ title, turns }: { title: string; turns: Spoken[] }): JSX.Element {
  return (
    <div>
      <h3>{title}</h3>
      {turns.map((turn) => (
        <div class="message">
          <b><Text>{turn.agent}</Text></b> <span class="quiet">{turn.path}</span>
          <Block text={turn.text} />
        </div>
      ))}
    </div>
  );
}

interface BlameAnswer {
  score: number;
  expected: Estimate;
  culprit: string | null;
  saviour: string | null;
  turns: { turn: string; agent: string; text: string; before: Estimate; after: Estimate; gain: Estimate }[];
  weights: string;
}

function BlameResult({ job }: { job: Job }): JSX.Element {
  const result = job.result as unknown as BlameAnswer;
  const decisive = result.culprit ?? result.saviour;
  return (
    <div class="result">
      <p>
        It scored {showNumber(result.score)}; before its first turn the team could expect{" "}
        {showNumber(result.expected.mean)} ± {showNumber(result.expected.margin)}.{" "}
        {decisive ? "The marked turn decided it." : "No single turn decided it."}
      </p>
      <table class="plain">
        <thead>
          <tr>
            <th scope="col">turn</th><th scope="col">agent</th>
            <th scope="col" class="number">before</th><th scope="col" class="number">after</th>
            <th scope="col" class="number">gain</th>
          </tr>
        </thead>
        <tbody>
          {result.turns.map((turn) => (
            <tr class={turn.turn === decisive ? "this" : ""}>
              <td><Text>{turn.turn.slice(turn.turn.lastIndexOf("/") + 1)}</Text></td>
              <td><Text>{turn.agent}</Text></td>
              <td class="number">{showNumber(turn.before.mean)}</td>
              <td class="number">{showNumber(turn.after.mean)}</td>
              <td class="number">{showSigned(turn.gain.mean)} ± {showNumber(turn.gain.margin)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="quiet"><Text>{result.weights}</Text></p>
    </div>
  );
}

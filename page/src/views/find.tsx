// Finds turns: a query, hits as they come, facets, and the list as a file.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ViewProps } from "../app";
import type { FindLine, Hit } from "../api";
import { readDetail, writeRequest } from "../fetching";
import { showCount, showNumber } from "../format";
import { Badge, Copy, Empty, Signed } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { Marked, Text } from "../parts/text";
import { setQuery, writeHref } from "../router";

const FEW = 200;
const MANY = 1000;
const EXAMPLES = ["adv>1", "agent:NAME valid:no", "finish:length", "error:yes", "step:1..5 score<1", '"a phrase"'];

interface Found {
  query: string;
  hits: Hit[];
  end: FindLine | null;
  error: string;
  searched: number;
  of: number;
}

const NOTHING: Found = { query: "", hits: [], end: null, error: "", searched: 0, of: 0 };

export function FindView({ query, run }: ViewProps): JSX.Element {
  const asked = query.get("q") ?? "";
  const [typed, setTyped] = useState(asked);
  const limit = query.get("limit") === String(MANY) ? MANY : FEW;
  const found = useFind(run, asked, limit);
  useEffect(() => setTyped(asked), [asked]);
  return (
    <>
      <div class="heading"><h1>Find turns</h1></div>
      <form
        class="find"
        role="search"
        onSubmit={(event) => {
          event.preventDefault();
          setQuery({ q: typed, sort: null, limit: null }, "push");
        }}
      >
        <input
          type="search"
          aria-label="query"
          placeholder={'agent:solver adv>0.5 step:40..60 valid:no "exact words"'}
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
        <button type="submit" class="button">find</button>
      </form>
      <p class="quiet examples">
        {EXAMPLES.map((each) => (
          <a href={writeHref("find", { run, q: each })}><code>{each}</code></a>
        ))}
      </p>
      {found.error ? <p class="error" role="alert"><Text>{found.error}</Text></p> : null}
      {asked && !found.error ? <Results run={run} found={found} query={query} /> : null}
      {asked ? null : <Empty>Write a query above: words, phrases and conditions, which must all hold.</Empty>}
    </>
  );
}

/** Reads the stream of a search, line by line; a new query ends the one before. */
function useFind(run: string, query: string, limit: number): Found {
  const [found, setFound] = useState<Found>(NOTHING);
  const frame = useRef(0);
  useEffect(() => {
    if (!query) return setFound(NOTHING);
    const controller = new AbortController();
    const state: Found = { ...NOTHING, query, hits: [] };
    const show = (): void => {
      cancelAnimationFrame(frame.current);
      frame.current = requestAnimationFrame(() => setFound({ ...state, hits: [...state.hits] }));
    };
    readStream(writeRequest("find", { run, q: query, limit }), controller.signal, (line) => {
      if (line.hit) state.hits.push(line.hit);
      if (line.error) state.error = line.error;
      if (line.is_end) state.end = line;
      state.searched = line.searched_steps || state.searched;
      state.of = line.of_steps || state.of;
      show();
    }).catch((error: Error) => {
      if (controller.signal.aborted) return;
      state.error = error.message;
      show();
    });
    return () => {
      controller.abort();
      cancelAnimationFrame(frame.current);
    };
  }, [run, query, limit]);
  return found.query === query ? found : { ...NOTHING, query };
}

async function readStream(
  request: string,
  signal: AbortSignal,
  take: (line: FindLine) => void,
): Promise<void> {
  const response = await fetch(request, { signal });
  if (!response.ok || !response.body) throw new Error(await readDetail(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop()!;
    for (const line of lines) if (line) take(JSON.parse(line) as FindLine);
  }
  if (rest) take(JSON.parse(rest) as FindLine);
}

function Results(props: { run: string; found: Found; query: URLSearchParams }): JSX.Element {
  const { run, found, query } = props;
  const matches = found.end?.matches ?? found.hits.length;
  const searched = found.end ? "" : `, ${found.searched} of ${found.of} steps searched`;
  return (
    <>
      <p role="status">
        {showCount(found.hits.length)} of {found.end ? "" : "at least "}
        {showCount(matches)} turns{searched}
        {found.hits.length === FEW && matches > FEW ? (
          <>
            {" "}
            <button type="button" class="small" onClick={() => setQuery({ limit: MANY }, "push")}>
              show {showCount(MANY)}
            </button>
          </>
        ) : null}
        {found.hits.length ? <Exports hits={found.hits} run={run} /> : null}
      </p>
      {found.end ? <Facets found={found} /> : null}
      {found.hits.length ? (
        <Table
          label="Turns"
          rows={found.hits}
          columns={COLUMNS}
          href={(hit) => writeHref("talk", { run, step: hit.step, episode: hit.episode, turn: hit.turn })}
          sort={query.get("sort") ?? ""}
          onSort={(sort) => setQuery({ sort })}
          tall
        />
      ) : null}
      {found.end && !found.hits.length ? <Empty>No turn matches.</Empty> : null}
    </>
  );
}

const COLUMNS: Column<Hit>[] = [
  { name: "turn", width: "16em", show: (hit) => <Text>{hit.turn}</Text>, sortBy: (hit) => hit.turn },
  { name: "step", width: "5em", isNumber: true, show: (hit) => hit.step, sortBy: (hit) => hit.step },
  { name: "agent", width: "8em", show: (hit) => <Text>{hit.agent}</Text>, sortBy: (hit) => hit.agent },
  { name: "score", width: "6em", isNumber: true, show: (hit) => showNumber(hit.score), sortBy: (hit) => hit.score },
  {
    name: "advantage",
    width: "7em",
    isNumber: true,
    show: (hit) => <Signed value={hit.advantage} />,
    sortBy: (hit) => hit.advantage,
  },
  {
    name: "flags",
    width: "8em",
    show: (hit) => (
      <>
        {hit.valid ? null : <Badge kind="failed">invalid</Badge>}
        {hit.finish === "length" ? <Badge kind="warning">cut off</Badge> : null}
      </>
    ),
  },
  { name: "text", width: "30em", show: (hit) => <Marked text={hit.snippet} ranges={hit.ranges} /> },
];

function Facets({ found }: { found: Found }): JSX.Element {
  const facets = Object.entries(found.end!.facets ?? {}).filter(([, values]) => Object.keys(values).length > 1);
  return (
    <div class="facets">
      {facets.map(([name, values]) => (
        <div>
          <b>{name}</b>{" "}
          {Object.entries(values)
            .sort(([, a], [, b]) => b - a)
            .slice(0, 8)
            .map(([value, number]) => (
              <button
                type="button"
                class="small"
                onClick={() => setQuery({ q: `${found.query} ${writeTerm(name, value)}` }, "push")}
              >
                <Text>{value}</Text> {showCount(number)}
              </button>
            ))}
        </div>
      ))}
    </div>
  );
}

function writeTerm(name: string, value: string): string {
  return /^[\w.-]+$/.test(value) ? `${name}:${value}` : `${name}:"${value.replace(/["\\]/g, "\\$&")}"`;
}

function Exports({ hits, run }: { hits: Hit[]; run: string }): JSX.Element {
  const csv = (): string => {
    const names = ["step", "episode", "turn", "agent", "task", "score", "advantage", "valid", "finish", "snippet"] as const;
    const quote = (value: unknown): string => `"${String(value ?? "").replace(/"/g, '""')}"`;
    return [names.join(","), ...hits.map((hit) => names.map((name) => quote(hit[name])).join(","))].join("\n");
  };
  const glob = `${run}/episodes/*.parquet`;
  const duckdb = `select step, turn, agent, score, advantage, text from read_parquet('${glob}') where advantage > 0.5`;
  const polars = `pl.scan_parquet("${glob}").filter(pl.col("advantage") > 0.5).select("step", "turn", "text").collect()`;
  return (
    <span class="exports">
      <button type="button" class="small" onClick={() => save("turns.csv", csv())}>CSV</button>
      <button type="button" class="small" onClick={() => save("turns.json", JSON.stringify(hits, null, 1))}>
        JSON
      </button>
      <span>DuckDB <Copy text={duckdb} what="query for DuckDB" /></span>
      <span>Polars <Copy text={polars} what="query for Polars" /></span>
    </span>
  );
}

function save(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text]));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}

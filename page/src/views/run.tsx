// Shows one run as a whole: curves by agent, time shares, evaluations, advice; live while it trains.
import type { JSX } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ViewProps } from "../app";
import type { Changes, Evaluation, Run } from "../api";
import { fetchJson, useAnswer, useInterval, writeRequest } from "../fetching";
import { count, showAgo, showNumber, showProgress, type Value } from "../format";
import { useKeys } from "../keys";
import { AdviceList, Badge, Facts, FilterBox, MissingList, Section, Waiting } from "../parts/basics";
import { Chart, type Line } from "../parts/chart";
import { Table } from "../parts/table";
import { Block, Text } from "../parts/text";
import { navigate, setQuery, writeHref } from "../router";

export function RunView({ query, run }: ViewProps): JSX.Element {
  const { data, error, reload } = useAnswer("Run", writeRequest("run", { run }));
  if (!data) return <Waiting error={error} what={`run ${run}`} />;
  return <LiveRun key={run} first={data} query={query} reload={reload} />;
}

interface Live {
  status: string;
  steps: number[];
  series: Record<string, Value[]>;
  evaluations: Evaluation[];
  inFlight: number;
}

function LiveRun(props: { first: Run; query: URLSearchParams; reload: () => void }): JSX.Element {
  const { first, query } = props;
  const live = useChanges(first, props.reload);
  const run = first.row.run;
  const filter = query.get("curves") ?? "";
  const charts = useMemo(
    () => arrangeCharts(live, first.team.map((agent) => agent.agent)),
    [live, first],
  );
  const shown = charts.filter((chart) => matches(chart, filter));
  const open = useCallback((step: number) => navigate(writeHref("step", { run, step })), [run]);
  const newest = live.steps[live.steps.length - 1];
  useKeys([{ key: "[", says: "newest step", run: () => newest !== undefined && open(newest) }]);
  return (
    <>
      <div class="heading">
        <h1><Text>{run}</Text></h1>
        <Badge kind={live.status.replace(" ", "-")}>{live.status}</Badge>
        <span role="status">
          {live.inFlight ? `${count(live.inFlight, "episode")} of the next step played` : ""}
        </span>
      </div>
      <RunFacts run={first} live={live} />
      {first.row.error ? <p class="error"><Text>{first.row.error}</Text></p> : null}
      <MissingList missing={first.missing} />
      {first.advice.length ? (
        <Section title="Advice"><AdviceList advice={first.advice} /></Section>
      ) : null}
      <section aria-label="Curves">
        <h2>
          Curves
          <span class="note">a point opens its step</span>
          <FilterBox
            label="filter curves"
            hint={`filter ${charts.length} curves; "all"`}
            value={filter}
            onInput={(value) => setQuery({ curves: value })}
          />
          <span class="note">{shown.length} of {count(charts.length, "curve")}</span>
        </h2>
        <div class="charts">
          {shown.map((chart) => (
            <Chart
              key={chart.title}
              title={chart.title}
              steps={live.steps}
              lines={chart.lines}
              onOpen={open}
            />
          ))}
        </div>
      </section>
      <TimeShares live={live} />
      <Evaluations run={run} evaluations={live.evaluations} />
      <Team run={first} />
      {first.chapters.length ? (
        <Section title="Chapters">
          <ul>{first.chapters.map((each) => <li><Text>{each}</Text></li>)}</ul>
        </Section>
      ) : null}
      <details>
        <summary>config.yaml</summary>
        <Block text={first.config} isCode />
      </details>
    </>
  );
}

/** Returns what a run was at first with all that was written since. */
function useChanges(first: Run, reload: () => void): Live {
  const [live, setLive] = useState<Live>(() => beginLive(first));
  const cursor = useRef(first.cursor);
  const isAsking = useRef(false);
  const ended = useRef(false);
  const run = first.row.run;
  useEffect(() => {
    cursor.current = first.cursor;
    setLive((before) => ({ ...beginLive(first), inFlight: before.inFlight }));
  }, [first]);
  useEffect(() => {
    ended.current = false;
    return () => void (ended.current = true);
  }, []);
  const ask = useCallback(() => {
    if (isAsking.current) return;
    isAsking.current = true;
    fetchJson<Changes>(writeRequest("changes", { run, after: cursor.current }))
      .then((changes) => {
        if (ended.current) return;
        const isSame = cursor.current === changes.cursor;
        cursor.current = changes.cursor;
        setLive((before) =>
          isSame && before.status === changes.status && before.inFlight === changes.in_flight
            ? before
            : addChanges(before, changes),
        );
        if (changes.is_new) reload();
      })
      .catch(() => undefined) // the next second asks again
      .finally(() => void (isAsking.current = false));
  }, [run]);
  useInterval(ask, 1000);
  return live;
}

function beginLive(run: Run): Live {
  return {
    status: run.row.status,
    steps: run.steps,
    series: run.series,
    evaluations: run.evaluations,
    inFlight: 0,
  };
}

function addChanges(before: Live, changes: Changes): Live {
  const base: Live = changes.is_new ? { ...before, steps: [], series: {}, evaluations: [] } : before;
  const series: Record<string, Value[]> = {};
  for (const name of new Set([...Object.keys(base.series), ...Object.keys(changes.series)])) {
    series[name] = [
      ...(base.series[name] ?? base.steps.map(() => null)),
      ...(changes.series[name] ?? changes.steps.map(() => null)),
    ];
  }
  return {
    status: changes.status,
    steps: [...base.steps, ...changes.steps],
    series,
    evaluations: [...base.evaluations, ...changes.evaluations],
    inFlight: changes.in_flight,
  };
}

interface Curves {
  title: string;
  measure: string;
  lines: Line[];
}

// What is looked at first; the filter box brings up the others.
const FIRST = [
  "score", "agent: reward", "agent: advantage_std", "agent: zero_signal", "policy: grad_norm",
  "agent: entropy", "agent: tokens", "agent: invalid", "agent: truncated", "agent: kl",
  "agent: clip_share", "agent: mismatch_kl",
]; // prettier-ignore

/** Puts the series of all agents, or policies, that measure the same onto one chart. */
function arrangeCharts(live: Live, agents: string[]): Curves[] {
  const charts = new Map<string, Curves>();
  for (const [name, values] of Object.entries(live.series)) {
    if (/^time\/\w+_share$/.test(name)) continue; // shown by themselves
    const [, group, owner, measure] = /^(agent|policy)\/([^/]+)\/(.+)$/.exec(name) ?? [];
    const title = group ? `${group}: ${measure}` : name;
    const chart = charts.get(title) ?? { title, measure: measure ?? name, lines: [] };
    chart.lines.push({ name: owner ?? name, values });
    charts.set(title, chart);
  }
  for (const chart of charts.values()) {
    chart.lines.sort((a, b) => place(agents, a.name) - place(agents, b.name));
  }
  const order = [...charts.values()];
  return order.sort((a, b) => place(FIRST, a.title) - place(FIRST, b.title));
}

function place(list: string[], name: string): number {
  const index = list.indexOf(name);
  return index < 0 ? list.length : index;
}

function matches(chart: Curves, filter: string): boolean {
  if (!filter) return FIRST.includes(chart.title);
  if (filter === "all") return true;
  const text = `${chart.title} ${chart.lines.map((line) => line.name).join(" ")}`.toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function RunFacts({ run, live }: { run: Run; live: Live }): JSX.Element {
  const { row } = run;
  const step = live.steps[live.steps.length - 1] ?? row.step;
  const scores = live.series.score ?? [];
  return (
    <Facts
      facts={[
        ["step", showProgress({ ...row, step })],
        ["score", showNumber(scores[scores.length - 1] ?? row.score)],
        ["held out", showNumber(row.held_out)],
        ["algorithm", <Text>{row.algorithm}</Text>],
        ["environment", <Text>{row.environment}</Text>],
        ["workflow", <Text>{run.workflow}</Text>],
        ["written", showAgo(row.updated)],
      ]}
    />
  );
}

const SHARES = ["rollout", "credit", "update", "publish"];

function TimeShares({ live }: { live: Live }): JSX.Element | null {
  const names = Object.keys(live.series).filter((name) => /^time\/\w+_share$/.test(name));
  if (!names.length || !live.steps.length) return null;
  const shares = names
    .map((name) => ({ name: name.slice(5, -6), values: live.series[name]! }))
    .sort((a, b) => place(SHARES, a.name) - place(SHARES, b.name));
  const last = live.steps.length - 1;
  return (
    <Section title="Where the time goes" note={`of step ${live.steps[last]}`}>
      <div class="shares" role="img" aria-label={shares.map((each) => sayShare(each, last)).join(", ")}>
        {shares.map((each, index) => (
          <div
            class={`share line-${index % 6}`}
            style={{ flexGrow: String(Math.max(0, each.values[last] ?? 0)) }}
            title={sayShare(each, last)}
          />
        ))}
      </div>
      <ul class="legend">
        {shares.map((each, index) => (
          <li><span class={`swatch line-${index % 6}`} aria-hidden="true" /> {sayShare(each, last)}</li>
        ))}
        <li>step {showNumber(live.series["time/step_s"]?.[last])} s</li>
      </ul>
    </Section>
  );
}

function sayShare(share: Line, last: number): string {
  return `${share.name} ${(100 * (share.values[last] ?? 0)).toFixed(1)} %`;
}

function Evaluations(props: { run: string; evaluations: Evaluation[] }): JSX.Element | null {
  if (!props.evaluations.length) return null;
  const newestFirst = [...props.evaluations].reverse();
  return (
    <Section title="Evaluations" note="on tasks that are not trained on">
      <Table
        label="Evaluations"
        rows={newestFirst}
        columns={[
          { name: "step", width: "5em", isNumber: true, show: (each) => each.step },
          { name: "when", width: "8em", show: (each) => each.when },
          { name: "split", width: "7em", show: (each) => <Text>{each.split}</Text> },
          { name: "measure", width: "8em", show: (each) => <Text>{each.headline}</Text> },
          {
            name: "value",
            width: "10em",
            isNumber: true,
            show: (each) => `${showNumber(each.value)} ± ${showNumber(each.margin)}`,
          },
          {
            name: "sources",
            title: "by source",
            width: "24em",
            show: (each) => <Text>{listSources(each)}</Text>,
          },
        ]}
      />
    </Section>
  );
}

function listSources(evaluation: Evaluation): string {
  const parts: string[] = [];
  for (const [name, value] of Object.entries(evaluation.scores)) {
    const match = /^by_source\/(.+)\/([^/]+)$/.exec(name);
    if (match && match[2] === evaluation.headline) parts.push(`${match[1]} ${showNumber(value)}`);
  }
  return parts.join(", ");
}

function Team({ run }: { run: Run }): JSX.Element {
  return (
    <Section title="Team">
      <Table
        label="Team"
        rows={run.team}
        columns={[
          { name: "agent", width: "10em", show: (row) => <Text>{row.agent}</Text> },
          { name: "policy", width: "10em", show: (row) => <Text>{row.policy}</Text> },
          { name: "base", width: "16em", show: (row) => <Text>{row.base}</Text> },
          { name: "trained", width: "6em", show: (row) => (row.is_trained ? "yes" : "no") },
          { name: "weights", width: "8em", show: (row) => <Text>{row.adapter || "all"}</Text> },
        ]}
      />
    </Section>
  );
}

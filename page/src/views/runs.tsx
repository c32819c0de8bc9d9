// Lists all runs, grouped by the sweeps that they belong to; two that are ticked can be compared.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import type { ViewProps } from "../app";
import type { RunList, RunRow } from "../api";
import { useAnswer, useInterval, writeRequest } from "../fetching";
import { count, showAgo, showNumber, showProgress } from "../format";
import { Badge, Choice, Empty, FilterBox, Section, Waiting } from "../parts/basics";
import { Spark } from "../parts/spark";
import { Table, type Column } from "../parts/table";
import { Text } from "../parts/text";
import { setQuery, writeHref } from "../router";

export function RunsView({ query }: ViewProps): JSX.Element {
  const { data, error, reload } = useAnswer("RunList", writeRequest("runs", {}));
  useInterval(useCallback(reload, []), 5000);
  if (!data) return <Waiting error={error} what="runs" />;
  const filter = query.get("filter") ?? "";
  const by = query.get("by") === "sweep" ? "sweep" : "run";
  const rows = filterRuns(data.runs, filter);
  const ticked = (query.get("ticked") ?? "").split(",").filter(Boolean);
  return (
    <>
      <div class="heading">
        <h1>Runs</h1>
        <FilterBox
          label="filter runs"
          hint="name, status, algorithm, key=value"
          value={filter}
          onInput={(value) => setQuery({ filter: value })}
        />
        {data.sweeps.length ? (
          <Choice
            label="group runs"
            value={by}
            options={[["run", "all"], ["sweep", `by sweep (${data.sweeps.length})`]]}
            onChoose={(value) => setQuery({ by: value === "run" ? null : value }, "push")}
          />
        ) : null}
        <CompareLink ticked={ticked} />
        <span class="quiet" role="status">
          {rows.length === data.total
            ? count(data.total, "run")
            : `${rows.length} of ${count(data.total, "run")}`}
        </span>
      </div>
      {data.runs.length === 0 ? (
        <Empty>There is no run yet. `rolecall train math` makes one in ./runs.</Empty>
      ) : by === "sweep" ? (
        <Sweeps list={data} rows={rows} query={query} ticked={ticked} />
      ) : (
        <RunTable label="Runs" rows={rows} keys={[]} query={query} ticked={ticked} tall />
      )}
    </>
  );
}

function Sweeps(props: {
  list: RunList;
  rows: RunRow[];
  query: URLSearchParams;
  ticked: string[];
}): JSX.Element {
  const alone = props.rows.filter((row) => !row.sweep);
  return (
    <>
      {props.list.sweeps.map((sweep) => {
        const rows = props.rows.filter((row) => row.sweep === sweep.name);
        if (!rows.length) return null;
        const note = `${count(rows.length, "run")} that differ in ${sweep.keys.join(", ")}`;
        return (
          <Section title={sweep.name} note={note}>
            <RunTable {...props} label={sweep.name} rows={rows} keys={sweep.keys} />
          </Section>
        );
      })}
      {alone.length ? (
        <Section title="Other runs" note={count(alone.length, "run")}>
          <RunTable {...props} label="Other runs" rows={alone} keys={[]} />
        </Section>
      ) : null}
    </>
  );
}

function RunTable(props: {
  label: string;
  rows: RunRow[];
  keys: string[];
  query: URLSearchParams;
  ticked: string[];
  tall?: boolean;
}): JSX.Element {
  const { ticked } = props;
  const columns: Column<RunRow>[] = [
    { name: "run", width: "15em", show: (row) => <Text>{row.run}</Text>, sortBy: (row) => row.run },
    {
      name: "tick",
      title: "compare",
      width: "5.2em",
      show: (row) => (
        <input
          type="checkbox"
          aria-label={`compare ${row.run}`}
          checked={ticked.includes(row.run)}
          onChange={() => setQuery({ ticked: toggle(ticked, row.run) })}
        />
      ),
    },
    {
      name: "status",
      width: "7em",
      show: (row) => <Badge kind={row.status.replace(" ", "-")}>{row.status}</Badge>,
      sortBy: (row) => row.status,
    },
    { name: "step", width: "7em", isNumber: true, show: showProgress, sortBy: (row) => row.step },
    {
      name: "score",
      width: "5em",
      isNumber: true,
      show: (row) => showNumber(row.score),
      sortBy: (row) => row.score ?? null,
    },
    { name: "curve", width: "8.5em", show: (row) => <Spark values={row.scores} what="score" /> },
    {
      name: "held",
      title: "held out",
      width: "6em",
      isNumber: true,
      show: (row) => showNumber(row.held_out),
      sortBy: (row) => row.held_out ?? null,
    },
    ...props.keys.map((key) => ({
      name: key,
      width: "9em",
      show: (row: RunRow) => <Text>{row.differs[key] ?? "–"}</Text>,
      sortBy: (row: RunRow) => sortValue(row.differs[key]),
    })),
    {
      name: "algorithm",
      width: "9em",
      show: (row) => <Text>{row.algorithm}</Text>,
      sortBy: (row) => row.algorithm,
    },
    {
      name: "environment",
      width: "9em",
      show: (row) => <Text>{row.environment}</Text>,
      sortBy: (row) => row.environment,
    },
    {
      name: "updated",
      width: "7em",
      isNumber: true,
      show: (row) => showAgo(row.updated),
      sortBy: (row) => row.updated,
    },
    {
      name: "error",
      title: "last error, what is missing",
      width: "18em",
      show: (row) => <Problem row={row} />,
      sortBy: (row) => row.error,
    },
  ];
  return (
    <Table
      label={props.label}
      columns={columns}
      rows={props.rows}
      href={(row) => writeHref("run", { run: row.run })}
      sort={props.query.get("sort") ?? ""}
      onSort={(sort) => setQuery({ sort }, "push")}
      tall={props.tall ?? false}
    />
  );
}

function Problem({ row }: { row: RunRow }): JSX.Element | null {
  const missing = row.missing.map((each) => `${each.what}: ${each.why}`).join("; ");
  const text = [row.error, missing].filter(Boolean).join("; ");
  return text ? <span class="problem" title={text}><Text>{text}</Text></span> : null;
}

function CompareLink({ ticked }: { ticked: string[] }): JSX.Element {
  if (ticked.length === 2) {
    const href = writeHref("compare", { first: ticked[0], second: ticked[1] });
    return <a class="button" href={href}>Compare the two</a>;
  }
  return <span class="quiet">{ticked.length === 1 ? "Tick one more to compare." : "Tick two to compare."}</span>;
}

function toggle(ticked: string[], run: string): string {
  const others = ticked.filter((each) => each !== run);
  return (others.length < ticked.length ? others : [...others.slice(-1), run]).join(",");
}

function sortValue(value: string | undefined): number | string | null {
  if (value === undefined) return null;
  const number = Number(value);
  return value.trim() !== "" && Number.isFinite(number) ? number : value;
}

function filterRuns(rows: RunRow[], filter: string): RunRow[] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return rows;
  return rows.filter((row) => {
    const differs = Object.entries(row.differs).map(([key, value]) => `${key}=${value}`);
    const text = [row.run, row.status, row.algorithm, row.environment, row.sweep, row.error]
      .concat(row.agents, differs)
      .join(" ")
      .toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

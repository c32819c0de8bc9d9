// Shows two runs beside one another: keys that differ, curves, the same tasks in pairs.
import type { JSX } from "preact";
import type { ViewProps } from "../app";
import type { Comparison, PairRow } from "../api";
import { useAnswer, writeRequest } from "../fetching";
import { count, showNumber, showSigned, type Value } from "../format";
import { Empty, Facts, FilterBox, Section, Signed, Waiting } from "../parts/basics";
import { Chart } from "../parts/chart";
import { Table } from "../parts/table";
import { Text } from "../parts/text";
import { setQuery, writeHref } from "../router";

const SHOWN = 12; // charts

export function CompareView({ query }: ViewProps): JSX.Element {
  const [first, second] = [query.get("first"), query.get("second")];
  const request = first && second ? writeRequest("compare", { first, second }) : null;
  const { data, error } = useAnswer("Comparison", request);
  if (!request) return <Empty>Tick two runs in the list of runs to compare them.</Empty>;
  if (!data) return <Waiting error={error} what="both runs" />;
  return (
    <>
      <div class="heading">
        <h1>
          {data.runs.map((run, place) => (
            <>
              {place ? <span class="quiet"> and </span> : null}
              <a href={writeHref("run", { run })}><Text>{run}</Text></a>
            </>
          ))}
        </h1>
      </div>
      <Facts
        facts={[
          ["difference on the same tasks", `${showSigned(data.mean, 3)} ± ${showNumber(data.margin)}`],
          ["tasks in pairs", showNumber(data.of_pairs)],
          ["keys that differ", showNumber(data.differs.length)],
          ["keys that are alike", showNumber(data.same)],
        ]}
      />
      {data.note ? <p class="quiet"><Text>{data.note}</Text></p> : null}
      <Section title="Config">
        {data.differs.length ? (
          <Table
            label="Keys that differ"
            rows={data.differs}
            columns={[
              { name: "key", width: "20em", show: ([key]) => <Text>{key}</Text> },
              { name: "first", title: data.runs[0] ?? "", width: "18em", show: (row) => <Text>{row[1]}</Text> },
              { name: "second", title: data.runs[1] ?? "", width: "18em", show: (row) => <Text>{row[2]}</Text> },
            ]}
          />
        ) : (
          <Empty>All keys are alike.</Empty>
        )}
      </Section>
      <Curves comparison={data} filter={query.get("curves") ?? ""} />
      <Section title="Same tasks" note={`${data.pairs.length} of ${count(data.of_pairs, "task")}`}>
        <Pairs data={data} sort={query.get("sort") ?? ""} />
      </Section>
    </>
  );
}

function Curves({ comparison, filter }: { comparison: Comparison; filter: string }): JSX.Element {
  const isScore = (name: string): number => Number(name !== "score");
  const names = Object.keys(comparison.series).sort((a, b) => isScore(a) - isScore(b));
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = names.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
  return (
    <section aria-label="Curves">
      <h2>
        Curves
        <FilterBox
          label="filter curves"
          value={filter}
          onInput={(value) => setQuery({ curves: value })}
        />
        <span class="note">
          {Math.min(SHOWN, matching.length)} of {count(names.length, "curve")}
        </span>
      </h2>
      <div class="charts">
        {matching.slice(0, SHOWN).map((name) => {
          const { steps, lines } = align(comparison.series[name]!, comparison.runs);
          return <Chart key={name} title={name} steps={steps} lines={lines} />;
        })}
      </div>
    </section>
  );
}

/** Puts curves with different steps onto one axis. */
function align(
  curves: Comparison["series"][string],
  runs: string[],
): { steps: number[]; lines: { name: string; values: Value[] }[] } {
  const steps = [...new Set(curves.flatMap(([own]) => own))].sort((a, b) => a - b);
  const lines = curves.map(([own, values], place) => {
    const byStep = new Map(own.map((step, index) => [step, values[index]]));
    return { name: runs[place] ?? "", values: steps.map((step) => byStep.get(step) ?? null) };
  });
  return { steps, lines };
}

function Pairs({ data, sort }: { data: Comparison; sort: string }): JSX.Element {
  if (!data.pairs.length) return <Empty>The runs were evaluated on no task that both have.</Empty>;
  return (
    <Table<PairRow>
      label="Same tasks"
      rows={data.pairs}
      columns={[
        { name: "task", width: "18em", show: (row) => <Text>{row.task}</Text>, sortBy: (row) => row.task },
        { name: "source", width: "10em", show: (row) => <Text>{row.source}</Text>, sortBy: (row) => row.source },
        { name: "first", title: data.runs[0] ?? "", width: "9em", isNumber: true, show: (row) => showNumber(row.first), sortBy: (row) => row.first },
        { name: "second", title: data.runs[1] ?? "", width: "9em", isNumber: true, show: (row) => showNumber(row.second), sortBy: (row) => row.second },
        { name: "difference", width: "8em", isNumber: true, show: (row) => <Signed value={row.difference} largest={1} />, sortBy: (row) => row.difference },
      ]}
      sort={sort}
      onSort={(next) => setQuery({ sort: next })}
      tall
    />
  );
}

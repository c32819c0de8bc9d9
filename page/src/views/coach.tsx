// Shows what coaches said in a step, and whether their scores go with the outcome.
import type { JSX } from "preact";
import type { ViewProps } from "../app";
import type { CoachRow } from "../api";
import { useAnswer, writeRequest } from "../fetching";
import { showNumber, showSigned } from "../format";
import { Empty, Facts, MissingList, Section, Waiting } from "../parts/basics";
import { SeriesCharts } from "../parts/series_charts";
import { StepPicker } from "../parts/steps";
import { Table, type Column } from "../parts/table";
import { Text } from "../parts/text";
import { setQuery, writeHref } from "../router";

export function CoachView({ query, run }: ViewProps): JSX.Element {
  const { data, error } = useAnswer("CoachPage", writeRequest("coach", { run, step: query.get("step") }));
  if (!data) return <Waiting error={error} what="the coach" />;
  return (
    <>
      <div class="heading">
        <h1>Coach in step {data.step}</h1>
        <StepPicker step={data.step} steps={data.steps} />
      </div>
      <MissingList missing={data.missing} />
      <Facts
        facts={Object.entries(data.correlation).map(([agent, value]) => [
          `${agent}: correlation with the outcome`,
          value === null ? "too few scores differ" : showSigned(value),
        ])}
      />
      <SeriesCharts steps={data.all_steps} series={data.by_step} />
      <Section title="Scores" note={`${data.rows.length} turns`}>
        {data.rows.length ? (
          <Table
            label="Scores of the coach"
            rows={data.rows}
            columns={COLUMNS}
            href={(row) =>
              writeHref("talk", { run, step: row.step, episode: row.episode, turn: row.turn, panel: "coach" })
            }
            sort={query.get("sort") ?? ""}
            onSort={(sort) => setQuery({ sort })}
            tall
          />
        ) : (
          <Empty>No coach scored a turn of this step.</Empty>
        )}
      </Section>
      {data.failures.length ? (
        <Section title="Failures">
          <ul>
            {data.failures.map(([turn, problem]) => (
              <li><Text>{turn}</Text>: <span class="problem"><Text>{problem}</Text></span></li>
            ))}
          </ul>
        </Section>
      ) : null}
    </>
  );
}

const COLUMNS: Column<CoachRow>[] = [
  { name: "turn", width: "18em", show: (row) => <Text>{row.turn}</Text>, sortBy: (row) => row.turn },
  { name: "agent", width: "9em", show: (row) => <Text>{row.agent}</Text>, sortBy: (row) => row.agent },
  { name: "score", title: "of 10", width: "5em", isNumber: true, show: (row) => showNumber(row.score, 1), sortBy: (row) => row.score },
  { name: "hindsight", width: "7em", isNumber: true, show: (row) => showNumber(row.hindsight, 1), sortBy: (row) => row.hindsight },
  { name: "outcome", width: "7em", isNumber: true, show: (row) => showNumber(row.outcome), sortBy: (row) => row.outcome },
  { name: "reasoning", width: "30em", show: (row) => <Text>{row.reasoning}</Text> },
];

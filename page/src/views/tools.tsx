// Shows which tools agents called in a step, what failed, and whether calls go with the advantage.
import type { JSX } from "preact";
import type { ViewProps } from "../app";
import type { ToolRow } from "../api";
import { useAnswer, writeRequest } from "../fetching";
import { showNumber, showSeconds } from "../format";
import { Empty, Links, MissingList, Section, Signed, Waiting } from "../parts/basics";
import { SeriesCharts } from "../parts/series_charts";
import { StepPicker } from "../parts/steps";
import { Table, type Column } from "../parts/table";
import { Text } from "../parts/text";

export function ToolsView({ query, run }: ViewProps): JSX.Element {
  const { data, error } = useAnswer("ToolsPage", writeRequest("tools", { run, step: query.get("step") }));
  if (!data) return <Waiting error={error} what="tools" />;
  return (
    <>
      <div class="heading">
        <h1>Tools in step {data.step}</h1>
        <StepPicker step={data.step} steps={data.steps} />
      </div>
      <MissingList missing={data.missing} />
      {data.rows.length ? (
        <Section title="Calls" note="advantage: mean of an agent's turns with and without a call">
          <Table label="Calls of tools" rows={data.rows} columns={COLUMNS} />
        </Section>
      ) : (
        <Empty>No tool was called in this step.</Empty>
      )}
      <SeriesCharts steps={data.all_steps} series={data.by_step} />
    </>
  );
}

const COLUMNS: Column<ToolRow>[] = [
  { name: "tool", width: "10em", show: (row) => <Text>{row.tool}</Text> },
  { name: "agent", width: "9em", show: (row) => <Text>{row.agent}</Text> },
  { name: "calls", width: "5em", isNumber: true, show: (row) => showNumber(row.calls) },
  { name: "errors", width: "5em", isNumber: true, show: (row) => showNumber(row.errors) },
  { name: "timed out", width: "6em", isNumber: true, show: (row) => showNumber(row.timed_out) },
  { name: "refused", width: "6em", isNumber: true, show: (row) => showNumber(row.refused) },
  { name: "time", width: "6em", isNumber: true, show: (row) => showSeconds(row.seconds) },
  { name: "with", width: "7em", isNumber: true, show: (row) => <Signed value={row.advantage_with} /> },
  { name: "without", width: "7em", isNumber: true, show: (row) => <Signed value={row.advantage_without} /> },
  { name: "examples", width: "18em", show: (row) => <Links links={row.examples} /> },
];

// Shows what verdicts say and whether they are true: each cell opens its turns.
import type { JSX } from "preact";
import type { ViewProps } from "../app";
import type { RoleCell } from "../api";
import { useAnswer, writeRequest } from "../fetching";
import { showNumber, showShare, type Value } from "../format";
import { Empty, Links, Section, Waiting } from "../parts/basics";
import { SeriesCharts } from "../parts/series_charts";
import { StepPicker } from "../parts/steps";
import { Text } from "../parts/text";

export function RolesView({ query, run }: ViewProps): JSX.Element {
  const { data, error } = useAnswer("Roles", writeRequest("roles", { run, step: query.get("step") }));
  if (!data) return <Waiting error={error} what="verdicts" />;
  const agents = [...new Set(data.cells.map((cell) => cell.agent))];
  const { steps, series } = arrange(data.by_step);
  return (
    <>
      <div class="heading">
        <h1>Verdicts in step {data.step}</h1>
        <StepPicker step={data.step} steps={data.steps} />
      </div>
      {agents.map((agent) => (
        <Section title={agent} note="verdicts by whether the team was right in the end">
          <div class="scroll" tabIndex={0} role="region" aria-label={`verdicts of ${agent}`}>
          <table class="plain verdicts">
            <thead>
              <tr>
                <th scope="col">verdict</th>
                <th scope="col" class="number">right</th>
                <th scope="col" class="number">wrong</th>
                <th scope="col">turns</th>
              </tr>
            </thead>
            <tbody>
              {data.cells.filter((cell) => cell.agent === agent).map((cell) => <Verdict cell={cell} />)}
            </tbody>
          </table>
          </div>
        </Section>
      ))}
      {agents.length ? null : <Empty>No agent gave a verdict in this step.</Empty>}
      <SeriesCharts steps={steps} series={series} />
    </>
  );
}

function Verdict({ cell }: { cell: RoleCell }): JSX.Element {
  const total = cell.right + cell.wrong || 1;
  return (
    <tr>
      <th scope="row"><Text>{cell.verdict}</Text></th>
      <td class="number">{showNumber(cell.right)} ({showShare(cell.right / total)})</td>
      <td class="number">{showNumber(cell.wrong)} ({showShare(cell.wrong / total)})</td>
      <td>
        right: <Links links={cell.links_right} /> wrong: <Links links={cell.links_wrong} />
      </td>
    </tr>
  );
}

function arrange(rows: [number, string, number][]): { steps: number[]; series: Record<string, Value[]> } {
  const steps = [...new Set(rows.map(([step]) => step))].sort((a, b) => a - b);
  const series: Record<string, Value[]> = {};
  for (const [step, agent, share] of rows) {
    const name = `${agent}: true verdicts`;
    series[name] ??= steps.map(() => null);
    series[name][steps.indexOf(step)] = share;
  }
  return { steps, series };
}

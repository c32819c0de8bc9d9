// Draws a chart for each of some series.
import type { JSX } from "preact";
import type { Value } from "../format";
import { Chart } from "./chart";
import { Section } from "./basics";

export function SeriesCharts(props: {
  steps: number[];
  series: Record<string, Value[]>;
}): JSX.Element | null {
  const names = Object.keys(props.series);
  if (!names.length || props.steps.length < 2) return null;
  return (
    <Section title="By step">
      <div class="charts">
        {names.map((name) => (
          <Chart key={name} title={name} steps={props.steps} lines={[{ name, values: props.series[name]! }]} />
        ))}
      </div>
    </Section>
  );
}

// Draws a small curve without axes.
import type { JSX } from "preact";
import { showNumber, type Value } from "../format";

const WIDTH = 110;
const HEIGHT = 20;

export function Spark({ values, what }: { values: Value[]; what: string }): JSX.Element {
  const known = values.filter((value): value is number => Number.isFinite(value));
  if (known.length < 2) return <span class="quiet">–</span>;
  const least = Math.min(...known);
  const range = Math.max(...known) - least || 1;
  const points = values
    .map((value, index) => [index, value] as const)
    .filter((pair): pair is readonly [number, number] => Number.isFinite(pair[1]))
    .map(([index, value]) => {
      const x = 1 + ((WIDTH - 2) * index) / Math.max(1, values.length - 1);
      return `${x.toFixed(1)},${(HEIGHT - 2 - ((HEIGHT - 4) * (value - least)) / range).toFixed(1)}`;
    });
  const says = `${what} from ${showNumber(known[0])} to ${showNumber(known[known.length - 1])}`;
  return (
    <svg class="spark" width={WIDTH} height={HEIGHT} role="img" aria-label={says}>
      <polyline points={points.join(" ")} />
    </svg>
  );
}

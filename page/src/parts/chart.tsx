// Draws curves on a canvas, with a table behind it; a point opens its step.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { showNumber, type Value } from "../format";
import { Table } from "./table";

export interface Line {
  name: string;
  values: Value[]; // by step
}

const HEIGHT = 150;
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 4], [12, 4]];

export function Chart(props: {
  title: string;
  steps: number[];
  lines: Line[];
  marks?: { step: number; says: string }[];
  onOpen?: (step: number) => void;
  points?: boolean;
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const open = useRef(props.onOpen);
  open.current = props.onOpen;
  const [isNear, setNear] = useState(false);
  const [cursor, setCursor] = useState<number | null>(null);
  const [hasTable, setTable] = useState(false);
  const scheme = useScheme();
  const names = props.lines.map((line) => line.name).join("\n");
  useEffect(() => watchNear(box.current!, () => setNear(true)), []);
  useEffect(() => {
    if (!isNear) return;
    const element = box.current!;
    const drawn = drawPlot(element, props.lines, props.points ?? props.steps.length < 40, setCursor);
    plot.current = drawn;
    drawn.setData(readData(props.steps, props.lines));
    drawn.over.addEventListener("click", () => {
      const index = drawn.cursor.idx;
      if (index !== null && index !== undefined) open.current?.(drawn.data[0]![index]!);
    });
    const observer = new ResizeObserver(() =>
      drawn.setSize({ width: Math.max(80, element.clientWidth), height: HEIGHT }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      drawn.destroy();
      plot.current = null;
    };
  }, [isNear, names, scheme, props.points]);
  useEffect(() => {
    plot.current?.setData(readData(props.steps, props.lines));
  }, [props.steps, props.lines]);
  const place = cursor ?? props.steps.length - 1;
  const opens = props.onOpen ? "; arrows move along it, Enter opens the step" : "";
  return (
    <figure class="chart">
      <figcaption>
        <h3>{props.title}</h3>
        <span class="values" aria-live="off">
          {props.steps[place] === undefined ? "" : `step ${props.steps[place]}`}
          {props.lines.map((line, index) => (
            <span class={`line-name line-${index % 6}`}>
              <svg width="16" height="8" aria-hidden="true">
                <line x1="0" x2="16" y1="4" y2="4" stroke-dasharray={DASHES[index % 6]!.join(" ")} />
              </svg>
              {props.lines.length > 1 ? line.name : ""} {showNumber(line.values[place])}
            </span>
          ))}
        </span>
      </figcaption>
      <div
        class="canvas"
        ref={box}
        tabIndex={0}
        role="group"
        aria-label={`${props.title} by step${opens}`}
        onKeyDown={(event) => moveCursor(event, plot.current, place, setCursor, props)}
      />
      <details onToggle={(event) => setTable(event.currentTarget.open)}>
        <summary>Table of {props.title}</summary>
        {hasTable ? <ChartTable {...props} /> : null}
      </details>
    </figure>
  );
}

function ChartTable(props: {
  title: string;
  steps: number[];
  lines: Line[];
  onOpen?: (step: number) => void;
}): JSX.Element {
  const rows = props.steps.map((step, index) => ({ step, index })).reverse();
  return (
    <Table
      label={`Table of ${props.title}`}
      rows={rows}
      columns={[
        {
          name: "step",
          width: "5em",
          isNumber: true,
          show: (row) =>
            props.onOpen ? (
              <button type="button" class="link" onClick={() => props.onOpen!(row.step)}>
                {row.step}
              </button>
            ) : (
              row.step
            ),
        },
        ...props.lines.map((line) => ({
          name: line.name,
          isNumber: true,
          show: (row: { index: number }) => showNumber(line.values[row.index], 5),
        })),
      ]}
    />
  );
}

function readData(steps: number[], lines: Line[]): uPlot.AlignedData {
  return [steps, ...lines.map((line) => line.values.map((value) => value ?? null))];
}

function drawPlot(
  element: HTMLElement,
  lines: Line[],
  hasPoints: boolean,
  onMove: (index: number | null) => void,
): uPlot {
  const style = getComputedStyle(element);
  const read = (name: string): string => style.getPropertyValue(name).trim();
  const axis: uPlot.Axis = {
    stroke: read("--dim"),
    grid: { stroke: read("--line"), width: 1 },
    ticks: { stroke: read("--line"), width: 1, size: 4 },
    font: `11px ${read("--sans") || "sans-serif"}`,
  };
  return new uPlot(
    {
      width: Math.max(80, element.clientWidth),
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false, dist: 8 } },
      scales: { x: { time: false }, y: { range: chooseRange } },
      axes: [
        { ...axis, size: 24, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] },
        { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => showTick(tick)) },
      ],
      series: [
        { label: "step" },
        ...lines.map((line, index) => ({
          label: line.name,
          stroke: read(`--line-${index % 6}`),
          width: 1.5,
          dash: DASHES[index % 6]!,
          spanGaps: true,
          points: { show: hasPoints, size: 4, fill: read(`--line-${index % 6}`) },
        })),
      ],
      hooks: { setCursor: [(plot) => onMove(plot.cursor.idx ?? null)] },
    },
    undefined,
    element,
  );
}

/** Leaves room around what is drawn; a curve that never changes lies in the middle. */
function chooseRange(_: uPlot, least: number | null, largest: number | null): uPlot.Range.MinMax {
  if (least === null || largest === null) return [0, 1];
  if (least === largest) return least === 0 ? [-0.1, 1] : [least - Math.abs(least) / 2, least + Math.abs(least) / 2];
  const room = (largest - least) * 0.08;
  return [least - room, largest + room];
}

function showTick(tick: number): string {
  const size = Math.abs(tick);
  if (size !== 0 && (size < 0.001 || size >= 1e5)) return tick.toExponential(0).replace("-", "−");
  return String(Number(tick.toFixed(4))).replace("-", "−");
}

function moveCursor(
  event: KeyboardEvent,
  plot: uPlot | null,
  place: number,
  setCursor: (index: number) => void,
  props: { steps: number[]; onOpen?: (step: number) => void },
): void {
  const moves: Record<string, number> = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0 };
  const next = event.key === "End" ? props.steps.length - 1 : moves[event.key];
  if (event.key === "Enter" && props.onOpen && props.steps[place] !== undefined) {
    props.onOpen(props.steps[place]);
  }
  if (next === undefined || next < 0 || next >= props.steps.length) return;
  event.preventDefault();
  setCursor(next);
  if (plot) plot.setCursor({ left: plot.valToPos(props.steps[next]!, "x"), top: 10 });
}

function watchNear(element: Element, call: () => void): () => void {
  const observer = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      call();
    },
    { rootMargin: "300px" },
  );
  observer.observe(element);
  return () => observer.disconnect();
}

function useScheme(): boolean {
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  const [isDark, setDark] = useState(query.matches);
  useEffect(() => {
    const update = (): void => setDark(query.matches);
    query.addEventListener("change", update);
    return () => query.removeEventListener("change", update);
  }, []);
  return isDark;
}

// Draws the graph of a conversation: lanes are agents, columns joint steps, edges recorded parents.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Talk, Turn } from "../api";
import { classifySigned } from "../colours";
import { showSigned } from "../format";
import { showPlain } from "../visible";

const COLUMN = 96;
const NODE = { width: 68, height: 24 };
const LANE = 30; // height of one node with what is around it
const NAMES = 110; // width of the names of lanes

interface Place {
  x: number;
  y: number;
}

export function Graph(props: {
  talk: Talk;
  selected: string;
  href: (turn: Turn) => string;
}): JSX.Element | null {
  const { talk, selected } = props;
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const node = box.current?.querySelector<SVGElement>('[aria-current="true"]');
    const area = box.current;
    if (!node || !area) return;
    const [inner, outer] = [node.getBoundingClientRect(), area.getBoundingClientRect()];
    if (inner.left < outer.left || inner.right > outer.right) {
      area.scrollLeft += inner.left - outer.left - outer.width / 2;
    }
  }, [selected, talk.episode]);
  if (!talk.turns.length) return null;
  const { places, lanes, width, height } = layOut(talk);
  return (
    <div class="graph" ref={box} tabIndex={0} role="region" aria-label="Graph of the conversation">
      <svg width={width} height={height} role="group" aria-label="turns">
        <defs>
          <pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
            <line x1="0" y1="0" x2="0" y2="5" class="hatch" />
          </pattern>
        </defs>
        {lanes.map((lane) => (
          <g>
            <rect class={`lane ${lane.index % 2 ? "odd" : ""}`} x="0" y={lane.top} width={width} height={lane.height} />
            <text class="lane-name" x="8" y={lane.top + lane.height / 2 + 4}>
              {showPlain(lane.agent).slice(0, 15)}
              <title>{showPlain(lane.agent)}</title>
            </text>
          </g>
        ))}
        {talk.turns.flatMap((turn) =>
          turn.parents.map((parent) => (
            <Edge from={places.get(parent)} to={places.get(turn.turn)!} />
          )),
        )}
        {talk.turns.map((turn, index) => (
          <Node
            turn={turn}
            number={index + 1}
            place={places.get(turn.turn)!}
            isSelected={turn.turn === selected}
            href={props.href(turn)}
          />
        ))}
      </svg>
    </div>
  );
}

function Node(props: {
  turn: Turn;
  number: number;
  place: Place;
  isSelected: boolean;
  href: string;
}): JSX.Element {
  const { turn, place } = props;
  const { advantage } = turn.why;
  const kind = classifySigned(advantage, 2);
  const box = {
    x: place.x - NODE.width / 2,
    y: place.y - NODE.height / 2,
    rx: 5,
    ...NODE,
  };
  return (
    <a
      href={props.href}
      class={`node ${turn.chosen ? "" : "unchosen"}`}
      aria-label={nameTurn(turn, props.number)}
      aria-current={props.isSelected ? "true" : undefined}
      data-turn={turn.turn}
    >
      <rect class={`box ${kind || "zero"}`} {...box} />
      {kind.startsWith("m") ? <rect class="hatched" fill="url(#hatch)" {...box} /> : null}
      <text x={place.x} y={place.y + 4}>{advantage === null ? "no adv." : showSigned(advantage)}</text>
      {turn.valid ? null : <text class="corner" x={box.x + NODE.width - 3} y={box.y + 6}>✕</text>}
    </a>
  );
}

/** "solver, turn 2, advantage +0.7". */
export function nameTurn(turn: Turn, number: number): string {
  const { advantage } = turn.why;
  const says = advantage === null ? "no advantage" : `advantage ${showSigned(advantage, 1)}`;
  const flags = [turn.valid ? "" : ", invalid", turn.chosen ? "" : ", not chosen"].join("");
  return `${showPlain(turn.agent)}, turn ${number}, ${says}${flags}`;
}

function Edge({ from, to }: { from: Place | undefined; to: Place }): JSX.Element | null {
  if (!from) return null;
  const [x1, x2] = [from.x + NODE.width / 2, to.x - NODE.width / 2];
  const bend = Math.max(12, (x2 - x1) / 2);
  return (
    <path
      class="edge"
      d={`M ${x1} ${from.y} C ${x1 + bend} ${from.y}, ${x2 - bend} ${to.y}, ${x2} ${to.y}`}
    />
  );
}

interface Lane {
  agent: string;
  index: number;
  top: number;
  height: number;
}

/** Turns of one agent in one joint step stand below one another. */
function layOut(talk: Talk): { places: Map<string, Place>; lanes: Lane[]; width: number; height: number } {
  const cells = new Map<string, Turn[]>();
  for (const turn of talk.turns) {
    const key = `${turn.lane} ${turn.column}`;
    cells.set(key, [...(cells.get(key) ?? []), turn]);
  }
  const lanes: Lane[] = [];
  let top = 0;
  for (const [index, agent] of talk.agents.entries()) {
    const columns = talk.turns.filter((turn) => turn.lane === index).map((turn) => turn.column);
    const deepest = Math.max(1, ...columns.map((column) => cells.get(`${index} ${column}`)!.length));
    lanes.push({ agent, index, top, height: deepest * LANE + 10 });
    top += deepest * LANE + 10;
  }
  const places = new Map<string, Place>();
  for (const turns of cells.values()) {
    const lane = lanes[turns[0]!.lane];
    if (!lane) continue;
    const first = lane.top + lane.height / 2 - ((turns.length - 1) * LANE) / 2;
    for (const [index, turn] of turns.entries()) {
      places.set(turn.turn, {
        x: NAMES + COLUMN * turn.column + COLUMN / 2,
        y: first + index * LANE,
      });
    }
  }
  const last = Math.max(...talk.turns.map((turn) => turn.column));
  return { places, lanes, width: NAMES + COLUMN * (last + 1) + 8, height: top };
}

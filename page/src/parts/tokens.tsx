// Shows the tokens of a turn, coloured by what is recorded of them.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Tokens } from "../api";
import { colourTokens, listModes, MODES, readGaps, type Mode } from "../colours";
import { useAnswer, writeRequest } from "../fetching";
import { showNumber, showSigned } from "../format";
import { useKeys } from "../keys";
import { setQuery } from "../router";
import { showPlain, splitVisible } from "../visible";
import { Choice, Empty, Facts, Waiting } from "./basics";

export function TokenPanel(props: {
  run: string;
  step: number;
  split: string;
  turn: string;
  query: URLSearchParams;
}): JSX.Element {
  const { run, step, turn, query } = props;
  const split = props.split === "train" ? null : props.split;
  const request = writeRequest("tokens", { run, step, turn, split });
  const { data, error } = useAnswer("Tokens", request);
  if (!data) return <Waiting error={error} what="tokens" />;
  return <ColouredTokens key={turn} tokens={data} query={query} />;
}

function ColouredTokens({ tokens, query }: { tokens: Tokens; query: URLSearchParams }): JSX.Element {
  const modes = listModes(tokens);
  const wanted = query.get("colour") as Mode | null;
  const mode = wanted && modes.includes(wanted) ? wanted : modes[0];
  const place = Number(query.get("token") ?? -1);
  useKeys([
    {
      key: "c",
      says: "colour the tokens by the next measure",
      run: () => setQuery({ colour: modes[(modes.indexOf(mode!) + 1) % modes.length] }),
    },
  ]);
  if (!tokens.ids.length) return <Empty>No tokens of this turn are recorded.</Empty>;
  const colouring = mode ? colourTokens(tokens, mode) : { classes: [], legend: [], note: "" };
  const missing = MODES.filter((each) => !modes.includes(each.mode)).map((each) => each.says);
  return (
    <>
      {tokens.text_note ? <p class="quiet">{tokens.text_note}</p> : null}
      {mode ? (
        <Choice
          label="colour tokens by"
          value={mode}
          options={MODES.filter((each) => modes.includes(each.mode)).map((each) => [each.mode, each.says])}
          onChoose={(value) => setQuery({ colour: value })}
        />
      ) : null}
      <ul class="legend" aria-label="Legend">
        {colouring.legend.map(([kind, says]) => (
          <li><span class={`swatch tokens ${kind}`} aria-hidden="true" /> {says}</li>
        ))}
        {colouring.note ? <li>{colouring.note}</li> : null}
      </ul>
      {missing.length ? <p class="quiet">Not recorded: {missing.join(", ")}.</p> : null}
      <TokenText tokens={tokens} classes={colouring.classes} place={place} />
      <TokenFacts tokens={tokens} place={place} />
    </>
  );
}

/**
 * Writes the elements by itself: eight thousand of them are made once for a turn, and a new colour
 * changes their classes only.
 */
function TokenText(props: { tokens: Tokens; classes: string[]; place: number }): JSX.Element {
  const { tokens, classes, place } = props;
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const all = document.createDocumentFragment();
    for (const [index, text] of tokens.texts.entries()) all.append(makeToken(text, index));
    box.current!.replaceChildren(all);
  }, [tokens]);
  useEffect(() => {
    const children = box.current!.children;
    for (let index = 0; index < children.length; index++) {
      const element = children[index]!;
      const kind = classes[index] ?? "";
      if (element.className !== kind) element.className = kind;
    }
  }, [tokens, classes]);
  useEffect(() => {
    const chosen = box.current!.children[place];
    if (!chosen) return;
    chosen.setAttribute("data-chosen", "");
    chosen.scrollIntoView({ block: "nearest" });
    return () => chosen.removeAttribute("data-chosen");
  }, [tokens, place]);
  const go = (to: number): void => {
    if (to >= 0 && to < tokens.ids.length) setQuery({ token: to });
  };
  return (
    <div
      class="tokens text"
      ref={box}
      tabIndex={0}
      role="region"
      aria-label="Tokens; the arrows left and right choose one"
      onClick={(event) => {
        const token = (event.target as Element).closest("[data-token]");
        if (token && !window.getSelection()?.toString()) go(Number(token.getAttribute("data-token")));
      }}
      onKeyDown={(event) => {
        const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
        if (!step) return;
        event.preventDefault();
        go(Math.max(0, place + step));
      }}
    />
  );
}

function makeToken(text: string, index: number): HTMLSpanElement {
  const element = document.createElement("span");
  element.setAttribute("data-token", String(index));
  const shown = showToken(text);
  element.append(shown);
  return element;
}

function showToken(text: string): string {
  if (!text) return "∅";
  const spans = splitVisible(text).map((span) => span.text);
  return spans.join("").replace(/\n/g, "↵\n").replace(/\t/g, "⇥\t").replace(/\r/g, "␍");
}

function TokenFacts({ tokens, place }: { tokens: Tokens; place: number }): JSX.Element {
  if (place < 0 || place >= tokens.ids.length) {
    return <p class="quiet">{tokens.ids.length} tokens; choose one for its numbers.</p>;
  }
  const columns: [string, (number | null)[] | null][] = [
    ["advantage", tokens.advantages],
    ["log-prob", tokens.logprobs],
    ["learner's", tokens.learner_logprobs],
    ["gap", readGaps(tokens)],
    ["entropy", tokens.entropies],
    ["reference", tokens.ref_logprobs],
    ["value", tokens.values],
    ["return", tokens.returns],
  ];
  const facts = columns
    .filter(([, values]) => values && values[place] !== null && values[place] !== undefined)
    .map(([name, values]) => {
      const value = values![place]!;
      return [name, name === "advantage" ? showSigned(value, 3) : showNumber(value, 4)] as [string, string];
    });
  return (
    <div aria-live="polite">
      <Facts
        facts={[
          [`token ${place + 1} of ${tokens.ids.length}`, `“${showPlain(showToken(tokens.texts[place]!))}”`],
          ["id", String(tokens.ids[place])],
          ...facts,
          ...(tokens.clipped ? [["clipped", tokens.clipped[place] ? "yes" : "no"] as [string, string]] : []),
          ...(tokens.versions ? [["version", String(tokens.versions[place])] as [string, string]] : []),
        ]}
      />
    </div>
  );
}

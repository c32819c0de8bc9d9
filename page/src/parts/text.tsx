// Shows text as it was written: text nodes only, with hidden characters named.
import type { JSX } from "preact";
import { diffWords } from "../diff";
import { splitVisible } from "../visible";

export function Text({ children }: { children: string }): JSX.Element {
  const spans = splitVisible(children);
  if (spans.length === 1 && !spans[0]!.isHidden) return <>{children}</>;
  return (
    <>
      {spans.map((span) =>
        span.isHidden ? (
          <span class="hidden-character" title="a character that would not be seen">
            {span.text}
          </span>
        ) : (
          span.text
        ),
      )}
    </>
  );
}

export function Block({ text, isCode }: { text: string; isCode?: boolean }): JSX.Element {
  return (
    <div class={isCode ? "text code" : "text"} dir="auto">
      {text ? <Text>{text}</Text> : <span class="quiet">(empty)</span>}
    </div>
  );
}

export function Marked({ text, ranges }: { text: string; ranges: [number, number][] }): JSX.Element {
  const pieces: JSX.Element[] = [];
  let end = 0;
  for (const [start, stop] of ranges) {
    if (start < end) continue;
    pieces.push(<Text>{text.slice(end, start)}</Text>, <mark><Text>{text.slice(start, stop)}</Text></mark>);
    end = stop;
  }
  return <>{[...pieces, <Text>{text.slice(end)}</Text>]}</>;
}

export function WordDiff({ before, after }: { before: string; after: string }): JSX.Element {
  return (
    <div class="text" dir="auto">
      {diffWords(before, after).map((piece) => {
        if (piece.kind === "same") return <Text>{piece.text}</Text>;
        return piece.kind === "added" ? (
          <ins><Text>{piece.text}</Text></ins>
        ) : (
          <del><Text>{piece.text}</Text></del>
        );
      })}
    </div>
  );
}

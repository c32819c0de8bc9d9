// Holds the small parts that all views are made of.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Advice, Link, Missing } from "../api";
import { classifySigned } from "../colours";
import { showSigned, type Value } from "../format";
import { Text } from "./text";

export function Section(props: {
  title: string;
  note?: string;
  id?: string;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <section id={props.id} aria-label={props.title}>
      <h2>
        {props.title}
        {props.note ? <span class="note">{props.note}</span> : null}
      </h2>
      {props.children}
    </section>
  );
}

/** Shows a value with its sign as text, and as colour and pattern. */
export function Signed(props: { value: Value; digits?: number; largest?: number }): JSX.Element {
  const kind = classifySigned(props.value, props.largest ?? 2);
  return <span class={`signed ${kind}`}>{showSigned(props.value, props.digits ?? 2)}</span>;
}

export function Badge(props: { kind: string; children: ComponentChildren }): JSX.Element {
  return <span class={`badge ${props.kind}`}>{props.children}</span>;
}

export function MissingList({ missing }: { missing: Missing[] }): JSX.Element | null {
  if (!missing.length) return null;
  return (
    <details class="missing" open={missing.length <= 3}>
      <summary>{missing.length === 1 ? "1 thing" : `${missing.length} things`} cannot be shown</summary>
      <ul>
        {missing.map((each) => (
          <li>
            <b><Text>{each.what}</Text></b>: <Text>{each.why}</Text>
          </li>
        ))}
      </ul>
    </details>
  );
}

export function Links({ links }: { links: Link[] }): JSX.Element {
  return (
    <span class="links">
      {links.map((link) => (
        <a href={link.href} title={link.text}>
          <Text>{link.text}</Text>
        </a>
      ))}
    </span>
  );
}

const MARKS = { note: "i", warning: "!", error: "✕" };

export function AdviceList({ advice }: { advice: Advice[] }): JSX.Element | null {
  if (!advice.length) return null;
  return (
    <ul class="advice" aria-label="Advice">
      {advice.map((each) => (
        <li class={each.severity}>
          <span class="mark" aria-label={each.severity} role="img">
            {MARKS[each.severity]}
          </span>
          <div>
            <Text>{each.text}</Text> <Links links={each.links} />
            {each.key ? (
              <div class="key">
                <code><Text>{each.key}</Text></code> <Copy text={each.key} what="key" />
              </div>
            ) : null}
          </div>
        </li>
      ))}
    </ul>
  );
}

export function Copy({ text, what }: { text: string; what: string }): JSX.Element {
  const [done, setDone] = useState("");
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(""), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  return (
    <button
      type="button"
      class="small"
      aria-label={`copy ${what}`}
      onClick={() => void copyText(text).then((isDone) => setDone(isDone ? "copied" : "not allowed"))}
    >
      {done || "copy"}
    </button>
  );
}

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Shows an error of the server in place, or that the answer is on its way. */
export function Waiting({ error, what }: { error: string; what: string }): JSX.Element {
  if (error) {
    return (
      <p class="error" role="alert">
        <Text>{error}</Text>
      </p>
    );
  }
  return <p class="quiet waiting">Reading {what} …</p>;
}

export function Empty({ children }: { children: ComponentChildren }): JSX.Element {
  return <p class="quiet empty">{children}</p>;
}

export function Facts({ facts }: { facts: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Choice<T extends string>(props: {
  label: string;
  options: [T, string][];
  value: T;
  onChoose: (value: T) => void;
}): JSX.Element {
  return (
    <div class="choice" role="group" aria-label={props.label}>
      {props.options.map(([value, says]) => (
        <button
          type="button"
          aria-pressed={value === props.value}
          onClick={() => props.onChoose(value)}
        >
          {says}
        </button>
      ))}
    </div>
  );
}

export function FilterBox(props: {
  label: string;
  value: string;
  hint?: string;
  onInput: (value: string) => void;
}): JSX.Element {
  return (
    <input
      type="search"
      class="filter"
      aria-label={props.label}
      placeholder={props.hint ?? props.label}
      value={props.value}
      onInput={(event) => props.onInput(event.currentTarget.value)}
    />
  );
}

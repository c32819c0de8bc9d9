// Shows what a task asks, and beside it the reference answer where there is one.
import type { JSX } from "preact";
import { Section } from "./basics";
import { Block } from "./text";

export function TaskTexts(props: { question: string; reference: string }): JSX.Element {
  return (
    <div class="two">
      <Section title="Question"><Block text={props.question} /></Section>
      {props.reference ? <Section title="Reference"><Block text={props.reference} /></Section> : null}
    </div>
  );
}

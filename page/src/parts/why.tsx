// Says why a turn got its advantage: sentences, formulas, and what it was compared with.
import type { JSX } from "preact";
import type { Talk, Turn } from "../api";
import { showNumber, showSigned } from "../format";
import { writeHref } from "../router";
import { Empty, Facts, Signed } from "./basics";
import { Text } from "./text";

export function WhyPanel({ talk, turn }: { talk: Talk; turn: Turn }): JSX.Element {
  const { why } = turn;
  const rewards = Object.entries(why.rewards);
  const isEven = why.first === null || why.last === null || Math.abs(why.first - why.last) < 1e-9;
  return (
    <>
      <p class="headline">
        <Signed value={why.advantage} digits={3} />
        <span class="quiet"> advantage of this turn</span>
      </p>
      {why.terms.map((term) => (
        <div class="term">
          <p><Text>{term.sentence}</Text></p>
          {term.formula ? <code class="formula"><Text>{term.formula}</Text></code> : null}
        </div>
      ))}
      {why.note ? <p class="flag"><Text>{why.note}</Text></p> : null}
      <Facts
        facts={[
          ["outcome", showNumber(why.outcome)],
          ...rewards.map(([name, value]) => [<Text>{name}</Text>, showSigned(value)] as never),
          ["weight", showNumber(why.weight)],
          ...(isEven
            ? []
            : ([
                ["first token", showSigned(why.first, 3)],
                ["last token", showSigned(why.last, 3)],
              ] as [string, string][])),
        ]}
      />
      <Samples talk={talk} turn={turn} />
    </>
  );
}

function Samples({ talk, turn }: { talk: Talk; turn: Turn }): JSX.Element {
  const { samples } = turn.why;
  if (!samples.length) return <Empty>It was compared with no other turn.</Empty>;
  const largest = Math.max(1e-9, ...samples.map(([, , score]) => Math.abs(score)));
  return (
    <>
      <h3>compared with {samples.length} samples</h3>
      <table class="plain">
        <thead>
          <tr><th scope="col">turn</th><th scope="col" class="number">score</th><th scope="col">size</th></tr>
        </thead>
        <tbody>
          {samples.map(([name, episode, score]) => (
            <tr class={name === turn.turn ? "this" : ""}>
              <td>
                <a href={writeHref("talk", { run: talk.run, step: talk.step, episode, turn: name })}>
                  <Text>{name.slice(name.lastIndexOf(":") + 1)}</Text>
                </a>
                {name === turn.turn ? <span class="quiet"> this turn</span> : null}
              </td>
              <td class="number">{showNumber(score)}</td>
              <td>
                <svg width="82" height="10" aria-hidden="true">
                  <rect
                    class={score < 0 ? "minus" : "plus"}
                    x="1" y="1" height="8"
                    width={Math.max(1, (80 * Math.abs(score)) / largest)}
                  />
                </svg>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}
